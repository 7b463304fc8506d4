"""What the command line may name: scenarios, brokers, measurements."""

from collections.abc import Iterable


class SetupError(Exception):
    """The benchmark cannot begin; the text says what to do."""


def chosen(only: str, what: str, known: Iterable[str]) -> list[str]:
    """The names in *only*, between commas; "": all that there are.

    Args: what: one of them is, in the message. Raises: SetupError for a name that there is not.
    """
    there = list(known)
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in there]:
        raise SetupError(f"no {what} {', '.join(unknown)}; there are {', '.join(there)}")
    return names or there
