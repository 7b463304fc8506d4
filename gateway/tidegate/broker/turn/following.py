"""Tells observers (:class:`tidegate.spi.Observer`) of messages: once per turn, once per delivery.

Made only if an extension observes: otherwise the writer has None in its place, and connections
are not :class:`~tidegate.broker.connection.observed.ObservedConnection`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from tidegate.broker.lists.pending_list import Consumer
from tidegate.broker.turn.turn import Turn
from tidegate.plugin_exit import FAILURES
from tidegate.spi import (
    AddMessage,
    GatewayError,
    Headers,
    Identity,
    Observer,
    Operation,
    PendingListId,
    SinkProgress,
    StoredMessage,
    content_bytes,
)

_log = logging.getLogger("tidegate.broker")
_set: Final = msgspec.structs.force_setattr


class Following:
    """See the module. One turn is on its way at a time.

    Args:
        observers: in configured order.
        filling: returns the filling turn.
        last_row: returns the ack sequence of the acknowledged log's last row; 0: nobody will commit it.
    """

    __slots__ = ("_added", "_filling", "_followed", "_last_row", "_observers", "_row")

    def __init__(
        self,
        observers: Sequence[Observer],
        filling: Callable[[], Turn],
        last_row: Callable[[], int],
    ) -> None:
        self._observers = list(observers)
        self._filling = filling
        self._last_row = last_row
        self._row = 0
        self._followed: list[tuple[Observer, list[StoredMessage]]] = []
        self._added: object = None

    def publishing(self, turn: Turn) -> None:
        """The turn is about to be sealed."""
        self._followed = []
        if not turn.added:
            return
        self._added = turn.added  # replaced when something is dropped
        messages = list(chain.from_iterable(turn.added.values()))
        for observer in self._observers:
            try:
                wanted = observer.observe_publishing(messages)
                followed = _give(turn, messages, wanted) if wanted else None
            except FAILURES:
                self._failed(observer)
                continue
            if followed:
                self._followed.append((observer, followed))

    def published(self, turn: Turn) -> None:
        """The turn is durable, and its clients are told; it no longer holds what was dropped."""
        if not self._followed:
            return
        if turn.added is self._added:
            for observer, followed in self._taken():
                self._call(observer, observer.observe_published, followed, "")
            return
        kept = {stored.sequence for held in turn.added.values() for stored in held}
        for observer, followed in self._taken():
            durable = [stored for stored in followed if stored.sequence in kept]
            dropped = [stored for stored in followed if stored.sequence not in kept]
            if durable:
                self._call(observer, observer.observe_published, durable, "")
            if dropped:
                problem = "the store had no room for it"
                self._call(observer, observer.observe_published, dropped, problem)

    def failed(self, error: GatewayError) -> None:
        """Nothing of the turn was written."""
        for observer, followed in self._taken():
            self._call(observer, observer.observe_published, followed, error.for_client)

    def written(self, operations: Sequence[Operation]) -> None:
        """*operations* are durable."""
        rows = range(self._row + 1, self._last_row() + 1)
        self._row = rows.stop - 1
        for observer in self._observers:
            self._call(observer, observer.observe_written, operations, rows)

    def carried(self, sinks: Sequence[SinkProgress]) -> None:
        """Sinks have made progress."""
        for observer in self._observers:
            self._call(observer, observer.observe_carried, sinks)

    def delivering(
        self, receiver: Identity, consumer: Consumer, messages: Sequence[StoredMessage]
    ) -> None:
        """*messages* go to the front-end of *consumer*."""

        def pending_list(sequence: int) -> PendingListId:
            entry = consumer.in_flight.get(sequence)
            if entry is not None:
                return entry[1].id if entry[1].is_stored else 0
            groups = self._filling().acknowledged.items()  # of consumers that need not acknowledge
            return next(
                (key[1].id for key, group in groups if key[0] is consumer and sequence in group[0]),
                0,
            )

        for observer in self._observers:
            self._call(
                observer,
                observer.observe_delivering,
                receiver,
                consumer.key,
                messages,
                pending_list,
            )

    def counts(self) -> Mapping[str, int]:
        """What observers tell operators."""
        found: dict[str, int] = {}
        for observer in self._observers:
            try:
                found.update(observer.observer_counts())
            except FAILURES:
                self._failed(observer)
        return found

    def _taken(self) -> list[tuple[Observer, list[StoredMessage]]]:
        followed, self._followed, self._added = self._followed, [], None
        return followed

    def _call(self, observer: Observer, method: Callable[..., None], *arguments: object) -> None:
        try:
            method(*arguments)
        except FAILURES:
            self._failed(observer)

    def _failed(self, observer: Observer) -> None:
        """Drop *observer*: it would fail again with each turn, some thousand times a second."""
        _log.exception("observer=%s failed and is not called again", observer)
        self._observers = [item for item in self._observers if item is not observer]


def _give(
    turn: Turn, messages: Sequence[StoredMessage], wanted: Mapping[int, Headers]
) -> list[StoredMessage]:
    """Give some of *messages*, which are all that the turn adds, the headers *wanted* for them, by index.

    Each gets its own copy: the published message may be retained, and charged as it was. What another
    operation moves here stays as it is. Returns: those with new headers.
    """
    operations = turn.operations
    others: _Others | None = None
    followed: list[StoredMessage] = []
    for index, headers in wanted.items():
        stored = messages[index]
        # Most turns only add messages, in this order.
        operation = operations[index] if index < len(operations) else None
        if type(operation) is not AddMessage or operation.sequence != stored.sequence:
            operation = None
            if operations:  # else nothing in the turn is stored or moved
                others = others or _Others(turn)
                operation = others.adding.get(stored.sequence)
                if operation is None and stored.sequence not in others.unstored:
                    continue
        message = msgspec.structs.replace(stored.message, headers=headers)
        _set(stored, "message", message)
        _set(stored, "size", content_bytes(message))
        if operation is not None:
            _set(operation, "message", message)
        followed.append(stored)
    return followed


class _Others:
    """What a turn adds, by sequence: the operation, or that it has none because it is not stored."""

    def __init__(self, turn: Turn) -> None:
        self.adding = {item.sequence: item for item in turn.operations if type(item) is AddMessage}
        self.unstored = {
            stored.sequence
            for route, held in turn.added.items()
            if not route.ids
            for stored in held
        }
