"""The contract behind extensions that follow messages: what is told of them, once a turn or a delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from tidegate.spi.clients.security import Identity
from tidegate.spi.messages import StoredMessage
from tidegate.spi.sink import SinkProgress
from tidegate.spi.storage.operations import Operation, PendingListId

#: What an :class:`Observer` gives a message instead of its own: names and values, in order.
Headers: TypeAlias = tuple[tuple[str, str], ...]

#: Counts bytes that an :class:`Observer` holds for a principal ("": nobody knows for whom), more or fewer.
#: Returns: False when there is no room for that many more; nothing is counted then, and the observer is to do without.
HoldFor: TypeAlias = Callable[[str, int], bool]


@runtime_checkable
class Observer(Protocol):
    """Follows messages from their publish to their end: told of batches, never of single messages.

    Called on the event loop, and must be quick; one that raises is logged and not called again.
    """

    def observer_starts(self, hold: HoldFor) -> None:
        """Called once, before everything else.

        Args: hold: what it remembers of messages it counts here, and uncounts when it forgets it.
        """
        ...

    def observe_publishing(self, messages: Sequence[StoredMessage]) -> Mapping[int, Headers]:
        """*messages* have been published, checked and numbered, and are about to be stored: a turn's.

        Among them are copies of what is retained (``retained``), what the gateway itself publishes
        (``$SYS``) and what is moved.

        Returns: by index in *messages*, the headers that a message is to be stored and delivered with in the
            place of its own; nothing for most. What is moved, or kept as retained, keeps its own.
        """
        ...

    def observe_published(self, messages: Sequence[StoredMessage], problem: str) -> None:
        """What became of those that were given headers. The next turn's come after this.

        Args: problem: why they were not stored, and their clients told so; "": they are durable as their
            clients want it, and confirmed.
        """
        ...

    def observe_delivering(
        self,
        receiver: Identity,
        subscription: str,
        messages: Sequence[StoredMessage],
        pending_list: Callable[[int], PendingListId],
    ) -> None:
        """*messages* are handed to *receiver*.

        Args: subscription: its key there; pending_list: from the sequence of one of them to the list that
            it will leave by an operation, which is under way where nobody is to acknowledge it; 0: it is in none.
        """
        ...

    def observe_written(self, operations: Sequence[Operation], rows: range) -> None:
        """These are durable, in order: messages leave lists (``Acknowledge``, ``Discard``, ``Move``), or
        have come back to them (``RecordDelivery``).

        Args: rows: ack sequences of the rows of the acknowledged log that they made, in their order; empty where
            no sink tells of commits. They are fewer than the operations say when some of the messages are not stored.
        """
        ...

    def observe_carried(self, sinks: Sequence[SinkProgress]) -> None:
        """Some of these have come further, or are new: all that tell of commits, in configured order."""
        ...

    def observer_counts(self) -> Mapping[str, int]:
        """What it wants to tell operators, by name; they become system topics and counts of ``Overview``."""
        ...
