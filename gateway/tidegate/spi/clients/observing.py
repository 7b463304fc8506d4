"""The contract of extensions that follow messages: they are told of batches, once a turn or a delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from tidegate.spi.clients.security import Identity
from tidegate.spi.messages import StoredMessage
from tidegate.spi.sink import SinkProgress
from tidegate.spi.storage.operations import Operation, PendingListId

#: Replaces a message's headers when an :class:`Observer` returns it: names and values, in order.
Headers: TypeAlias = tuple[tuple[str, str], ...]

#: Counts bytes that an :class:`Observer` holds for a principal ("": unknown); negative to release.
#: Returns: False when there is no room for that many more; nothing is counted, and the observer must do without.
HoldFor: TypeAlias = Callable[[str, int], bool]


@runtime_checkable
class Observer(Protocol):
    """Follows messages from publish to end. It is told of batches, never of single messages.

    Called on the event loop, and must be quick; one that raises is logged and not called again.
    """

    def observer_starts(self, hold: HoldFor) -> None:
        """Called once, before everything else.

        Args: hold: counts the memory of remembered messages; call it again with a negative size on forgetting.
        """
        ...

    def observe_publishing(self, messages: Sequence[StoredMessage]) -> Mapping[int, Headers]:
        """*messages* are one turn's: published, checked and numbered, and about to be stored.

        Among them are copies of retained messages (``retained``), messages published by the gateway itself
        (``$SYS``), and moved ones.

        Returns: by index in *messages*, the headers to store and deliver a message with, in place of its own;
            nothing for most. A moved message, or one kept as retained, keeps its own.
        """
        ...

    def observe_published(self, messages: Sequence[StoredMessage], problem: str) -> None:
        """What became of the messages that were given headers. Called before the next turn's messages.

        Args: problem: why they were not stored, which their clients have been told; "" when they are as durable
            as their clients asked for, and confirmed.
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

        Args: subscription: its key there; pending_list: maps the sequence of a message to the list that it will
            leave by an operation (already under way when nobody has to acknowledge it); 0 when it is in no list.
        """
        ...

    def observe_written(self, operations: Sequence[Operation], rows: range) -> None:
        """These operations are durable, in order: messages left lists (``Acknowledge``, ``Discard``, ``Move``), or
        came back to them (``RecordDelivery``).

        Args: rows: ack sequences of the acknowledged log's rows that the operations made, in order; empty when no
            sink reports commits. There are fewer than the operations suggest when some messages are not stored.
        """
        ...

    def observe_carried(self, sinks: Sequence[SinkProgress]) -> None:
        """Some sinks have advanced, or are new. *sinks*: all that report commits, in configured order."""
        ...

    def observer_counts(self) -> Mapping[str, int]:
        """Counters for operators, by name; they become system topics and counts of ``Overview``."""
        ...
