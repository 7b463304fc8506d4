"""The rules of `--acl`: what a file of a plant with some departments and devices looks like.

Nobody in the benchmark logs in, so that its clients are `anonymous`. Of the rules about publishing
and taking, theirs is the last one: whoever asks has gone through all the others first.
"""

from typing import Final

#: Rules in all, the two of the benchmark's own clients among them.
RULES: Final = 100


def rules(count: int = RULES) -> str:
    """Return a file of *count* rules (2 or more) for `tidegate-acl`."""
    made = ['[[rules]]\nallow = "connect"']
    made += [_OF_OTHERS[number % len(_OF_OTHERS)].format(n=number) for number in range(count - 2)]
    made.append(
        '[[rules]]\nallow = ["publish", "subscribe", "consume", "create"]\n'
        'principals = "anonymous"\ndestinations = "bench.>"'
    )
    return "\n\n".join(made) + "\n"


# Some are for everybody, so that they are asked about each name; others are for somebody else.
_OF_OTHERS: Final = (
    """[[rules]]
allow = ["publish", "subscribe"]
principals = "gateway-{n}"
destinations = ["mqtt:site-{n}/{{client_id}}/#"]""",
    """[[rules]]
deny = ["publish", "subscribe", "consume", "retain"]
destinations = ["topic://site-{n}.*.secret.>", "queue://payroll-{n}.>"]""",
    """[[rules]]
allow = ["publish", "consume", "create"]
groups = "department-{n}"
destinations = ["queue://orders-{n}.>", "queue://invoices-{n}.{{principal}}"]""",
    """[[rules]]
allow = ["publish", "subscribe"]
destinations = ["mqtt:devices-{n}/{{client_id}}/state"]""",
    """[[rules]]
allow = ["subscribe", "consume", "browse"]
addresses = "10.{n}.0.0/16"
destinations = ["topic://*.plan-{n}", "queue://reports-{n}.>"]""",
)
