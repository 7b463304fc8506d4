"""Tells a message that the other broker refuses from a broker that is refusing everything.

An ERROR does not say whether the message is bad or the broker is short of something. So a message is
put aside only after the other broker has refused it by name often enough, and then accepts a later
one. It goes to a separate queue and is not sent again later, which keeps the order.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi import Message, names

#: The headers of dead letters, so that ``tidegate dlq`` can show them and send them back.
_FROM: Final = "original-destination"
_REASON: Final = "dead-letter-reason"


class Suspect:
    """The last refused message. Args: park_after: see BridgeOptions.

    Attributes: number: its sequence, 0: none; attempts: refusals in a row; said: the reason given;
        is_held: it is held back in this attempt, so that others can go.
    """

    def __init__(self, park_after: int) -> None:
        self._park_after = park_after
        self.number = 0
        self.attempts = 0
        self.said = ""
        self.is_held = False

    def refused(self, number: int, said: str) -> None:
        """The other broker refused this one by name."""
        self.attempts = self.attempts + 1 if number == self.number else 1
        self.number, self.said = number, said

    def forget(self) -> None:
        """It is no longer refused, or no longer here."""
        self.number, self.attempts, self.said, self.is_held = 0, 0, "", False

    def begin(self, *, has_others: bool) -> bool:
        """Begin an attempt. Args: has_others: others can go instead. Returns: hold it back."""
        if self.is_held:  # the others failed too: it is the broker, so start counting again
            self.attempts, self.is_held = 0, False
        elif self.number and 0 < self._park_after <= self.attempts:
            self.is_held = has_others
        return self.is_held


def parking_queue(bridge: str, rule: str) -> str:
    """The queue for what a rule puts aside."""
    return names.queue(f"parked.{bridge}.{rule.removeprefix('$')}")


def parked(message: Message, queue: str, origin: str, reason: str) -> Message:
    """*message* as put into *queue*. Args: origin: where it was; reason: as the broker gave it."""
    return msgspec.structs.replace(
        message,
        destination=queue,
        expires_at=0,  # it must not expire before anybody looks
        retain=False,
        headers=(*message.headers, (_FROM, origin), (_REASON, reason)),
    )
