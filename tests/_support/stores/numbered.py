"""Operations on messages that are told apart by a number."""

from __future__ import annotations

from tidegate.spi import Acknowledge, AddMessage, Message


def message(number: int, size: int = 100) -> Message:
    """A message whose body begins with its number."""
    return Message("queue://q", (b"%d " % number).ljust(size, b"."), (("n", str(number)),), 5)


def add(sequence: int, *lists: int, size: int = 100) -> AddMessage:
    """Add :func:`message` to list 1, or to *lists*."""
    return AddMessage(sequence, message(sequence, size), lists or (1,))


def ack(*sequences: int, pending_list: int = 1) -> Acknowledge:
    """Acknowledge as a consumer would."""
    times = tuple(1000 + sequence for sequence in sequences)
    return Acknowledge(pending_list, sequences, times, 2000, "client", "subscription", "stomp")
