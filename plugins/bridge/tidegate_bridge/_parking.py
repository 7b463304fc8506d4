"""A message that the other broker refuses, and what tells it from a broker that refuses everything just now.

An ERROR does not say whether the message is wrong or the broker is short of something. So a message is put aside only when
the other broker has named it in refusing it so often, and then takes one that came behind it. It is in a queue of its own
then, not sent again later, so that nothing overtakes anything.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi import Message, names

#: As dead letters have them, so that ``tidegate dlq`` shows them, and sends them back.
_FROM: Final = "original-destination"
_REASON: Final = "dead-letter-reason"


class Suspect:
    """The message that was refused last. Args: park_after: see BridgeOptions.

    Attributes: number: its sequence, 0: none; attempts: how often in a row; said: with which words;
        is_held: it is left out of this attempt, in which others go.
    """

    def __init__(self, park_after: int) -> None:
        self._park_after = park_after
        self.number = 0
        self.attempts = 0
        self.said = ""
        self.is_held = False

    def refused(self, number: int, said: str) -> None:
        """The other broker names this one."""
        self.attempts = self.attempts + 1 if number == self.number else 1
        self.number, self.said = number, said

    def forget(self) -> None:
        """It is not refused any more, or is not here."""
        self.number, self.attempts, self.said, self.is_held = 0, 0, "", False

    def begin(self, *, has_others: bool) -> bool:
        """An attempt begins. Args: has_others: which could go in its place. Returns: it is to be held back."""
        if self.is_held:  # none of the others went either: it is the broker, and it is counted anew
            self.attempts, self.is_held = 0, False
        elif self.number and 0 < self._park_after <= self.attempts:
            self.is_held = has_others
        return self.is_held


def parking_queue(bridge: str, rule: str) -> str:
    """Where what a rule puts aside is."""
    return names.queue(f"parked.{bridge}.{rule.removeprefix('$')}")


def parked(message: Message, queue: str, origin: str, reason: str) -> Message:
    """*message* as it is in *queue*. Args: origin: where it was; reason: the other broker's words."""
    return msgspec.structs.replace(
        message,
        destination=queue,
        expires_at=0,  # nothing is lost when nobody looks
        retain=False,
        headers=(*message.headers, (_FROM, origin), (_REASON, reason)),
    )
