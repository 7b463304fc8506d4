"""Decides which options of queue and subscription limits have an effect."""

from __future__ import annotations

from typing import Final

from tidegate.config._policies import DestinationPolicy

#: The options of a queue's limit; with this prefix they are a durable subscription's.
LIMIT_OPTIONS: Final = (
    *("messages_max", "bytes_max", "age_max"),
    *("overflow", "overflow_wait", "overflow_dead_letter"),
)
SUBSCRIPTION_PREFIX: Final = "subscription_"


def limit_reason(policy: DestinationPolicy, prefix: str, option: str) -> str:
    """Why the limit's *option* with *prefix* has no effect; "" when it has one."""

    def value(name: str) -> object:
        return getattr(policy, prefix + name)

    is_limited = value("messages_max") or value("bytes_max")
    act = value("overflow")
    if option in ("overflow", "overflow_wait") and not is_limited:
        return f"{prefix}messages_max and {prefix}bytes_max are unlimited"
    if option == "overflow_wait" and act != "refuse":
        return f"{prefix}overflow is {act!r}, and this option applies only to 'refuse'"
    drops = act in ("drop_oldest", "drop_newest") or (act == "disconnect" and prefix)
    if option == "overflow_dead_letter" and not ((drops and is_limited) or value("age_max")):
        return (
            f"nothing is dropped without {prefix}age_max, or a limit with an "
            f"{prefix}overflow that drops messages"
        )
    return ""
