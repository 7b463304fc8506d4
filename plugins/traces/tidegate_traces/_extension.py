"""The extension: follows messages from publish to end, and makes spans.

A message with one delivery gets three spans: *send* (from its publish until it is confirmed),
*process* (from its delivery until it is acknowledged, or comes back) and *settle* (from the
acknowledgement until that is durable, or the message ends otherwise). Each sink that has its row
adds *commit* (from the acknowledgement until the row is in the table). A span is made at its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, final

from opentelemetry.sdk.resources import SERVICE_NAME
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    Headers,
    HoldFor,
    Identity,
    Move,
    Operation,
    Outcome,
    PendingListId,
    RecordDelivery,
    RemoveDestination,
    RemoveSubscription,
    SinkProgress,
    StoredMessage,
    names,
)
from tidegate_traces._context import PARENT, Marks, extract, is_sampled, made, value_of
from tidegate_traces._open import Delivered, OpenDeliveries, Waiting
from tidegate_traces._options import TracesOptions
from tidegate_traces._outlet import NOTHING_SENT, SERVICE, Outlet, resource_of
from tidegate_traces._rows import Committed, Row, RowsOnTheirWay
from tidegate_traces._sampling import Gaps, RateCap
from tidegate_traces._spans import (
    COMMIT,
    OUTCOME,
    PROCESS,
    SEND,
    SETTLE,
    TEXT_MAX,
    Sent,
    SpanMaker,
    described,
)

_SYSTEM: Final = names.topic("$SYS.")
_NS: Final = 1000

#: Outcomes of a delivery that have no operation of their own.
_DELIVERED: Final = "delivered"
_RETURNED: Final = "returned"
_REMOVED: Final = "removed"
_UNKNOWN: Final = "unknown"
_MOVED: Final = "moved"
_NOT_ACKNOWLEDGED: Final = "not acknowledged"

#: A header that dead letters have, and other moved messages do not.
_DEAD_LETTER_REASON: Final = "dead-letter-reason"
_ACKNOWLEDGED: Final = Outcome.ACKNOWLEDGED.word

#: Rows handled in one go: less than 1 ms, or some 10 ms with a large `rate_max`; and the pause
#: that leaves the loop to others.
_PORTION: Final = 32
_PORTION_MAX: Final = 500
_PORTION_INTERVAL_S: Final = 0.02


class _Settled(NamedTuple):
    """A message that a written *operation* makes a row of, at *offset* of its rows."""

    operation: Acknowledge | Move
    offset: int
    sent: Sent
    context: SpanContext
    began: int


@final
class Traces:
    """Implements Observer and Service of :mod:`tidegate.spi`."""

    def __init__(self, options: TracesOptions) -> None:
        self._options = options
        resource = resource_of(options)
        service = str(resource.attributes.get(SERVICE_NAME, SERVICE))
        self._marks = Marks(service)
        self._spans = SpanMaker(resource)
        self._outlet: Outlet | None = None
        self._gaps = Gaps(options.sample_ratio)
        self._published_cap = RateCap(options.rate_max)
        self._delivered_cap = RateCap(options.rate_max)
        self._ids = RandomIdGenerator()
        # For the turn being written: the context that each message came with.
        self._sending: dict[int, tuple[SpanContext, SpanContext | None]] = {}
        self._waiting = Waiting(options.open_max, self._held_for)
        self._open = OpenDeliveries(options.open_max, self._held_for)
        self._settled: list[_Settled] = []
        self._rows = RowsOnTheirWay(options.rows_max, self._held_for)
        # Twice as many as may arrive, where possible.
        portion = int(options.rate_max * 2 * _PORTION_INTERVAL_S)
        self._portion = min(_PORTION_MAX, max(_PORTION, portion))
        self._next_portion: asyncio.TimerHandle | None = None
        self._capped = 0
        self._forgotten = 0
        self._hold: HoldFor = _nobody_counts

    def __repr__(self) -> str:
        return "traces"

    async def start(self, changed: Callable[[], None]) -> None:
        """See Service."""
        self._outlet = Outlet(self._options)

    async def stop(self) -> None:
        """See Service. Sends waiting spans, for as long as the options allow."""
        if self._next_portion is not None:
            self._next_portion.cancel()
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            await outlet.close()

    # --- Observer --------------------------------------------------------------------------------

    def observer_starts(self, hold: HoldFor) -> None:
        """See Observer."""
        self._hold = hold

    def observe_publishing(self, messages: Sequence[StoredMessage]) -> Mapping[int, Headers]:
        """See Observer."""
        wanted: dict[int, Headers] = {}
        if self._outlet is None:
            return wanted
        self._sending = {}
        gaps, count = self._gaps, len(messages)
        with_headers = [at for at, stored in enumerate(messages) if stored.message.headers]
        if with_headers:
            count -= len(with_headers)
            for at in with_headers:
                traceparent = value_of(messages[at].message.headers, PARENT)
                if not traceparent:
                    self._pick(messages, (at,), wanted)
                elif is_sampled(traceparent):
                    self._continue(messages[at], at, wanted)
        if gaps.left >= count:
            gaps.left -= count
        elif with_headers:
            plain = [at for at, stored in enumerate(messages) if not stored.message.headers]
            self._pick(messages, plain, wanted)
        else:
            self._pick(messages, range(count), wanted)
        return wanted

    def observe_published(self, messages: Sequence[StoredMessage], problem: str) -> None:
        """See Observer."""
        now = time.time_ns()
        for stored in messages:
            context, parent = self._sending.pop(stored.sequence)
            message = stored.message
            sent = described(message, stored.sequence, context)
            more: dict[str, str | int] = {"network.protocol.name": message.protocol}
            if message.client_id:
                more["messaging.client.id"] = message.client_id
            times = (message.received_at * _NS or now, now)
            self._emit(SEND, sent, context, parent, times, more, problem=problem)
            if not problem and self._waiting.put(stored.sequence, sent):
                self._forgotten += 1

    def observe_delivering(
        self,
        receiver: Identity,
        subscription: str,
        messages: Sequence[StoredMessage],
        pending_list: Callable[[int], PendingListId],
    ) -> None:
        """See Observer."""
        with_headers = [stored for stored in messages if stored.message.headers]
        if with_headers and self._outlet is not None:
            is_own = self._marks.is_own
            for stored in with_headers:
                if is_own(stored.message.headers):
                    self._deliver(receiver, subscription, stored, pending_list(stored.sequence))

    def observe_written(self, operations: Sequence[Operation], rows: range) -> None:
        """See Observer."""
        is_open = self._open.by_list
        if not (is_open or len(self._waiting)) or self._outlet is None:
            return
        for operation in operations:
            kind = type(operation)
            if kind is AddMessage:  # most are
                continue
            if isinstance(operation, Acknowledge):
                if operation.outcome is not Outcome.ACKNOWLEDGED or (
                    operation.pending_list in is_open
                ):
                    self._left(operation)
            elif isinstance(operation, Move):
                self._moved(operation)
            elif isinstance(operation, Discard):
                word = operation.reason.value
                self._settle(operation.pending_list, operation.sequences, 0, word, word)
            elif isinstance(operation, RecordDelivery):
                self._returned(operation)
            elif isinstance(operation, RemoveDestination | RemoveSubscription):
                self._end_all(self._open.take_all(operation.pending_list), _REMOVED)
        if self._settled:
            self._remember_rows(operations, rows)

    def observe_carried(self, sinks: Sequence[SinkProgress]) -> None:
        """See Observer."""
        self._rows.carried(sinks)
        if self._next_portion is None:
            self._tell_rows()

    def observer_counts(self) -> Mapping[str, int]:
        """See Observer."""
        return {
            "traces.open": self._open.size,
            "traces.capped": self._capped,
            "traces.forgotten": self._forgotten,
            "traces.rows": len(self._rows),
            "traces.rows_forgotten": self._rows.forgotten,
            **(NOTHING_SENT if self._outlet is None else self._outlet.counts()),
        }

    def _held_for(self, principal: str, size: int) -> bool:
        return self._hold(principal, size)

    # --- publishing ------------------------------------------------------------------------------

    def _pick(
        self, messages: Sequence[StoredMessage], places: Sequence[int], wanted: dict[int, Headers]
    ) -> None:
        """Sample from *messages* at these *places*, which have no context."""
        gaps, passed = self._gaps, 0
        while passed + gaps.left < len(places):
            passed += int(gaps.left)
            at = places[passed]
            self._begin(messages[at], at, self._ids.generate_trace_id(), None, wanted)
            gaps.next()
            passed += 1
        gaps.left -= len(places) - passed

    def _continue(self, stored: StoredMessage, at: int, wanted: dict[int, Headers]) -> None:
        """Continue the trace of a message that came with a sampled context."""
        headers = stored.message.headers
        if self._marks.context_of(headers) is not None:
            return  # already traced here: it is being moved
        parent = extract(headers)
        if parent is not None:
            self._begin(stored, at, parent.trace_id, parent, wanted)

    def _begin(
        self,
        stored: StoredMessage,
        at: int,
        trace_id: int,
        parent: SpanContext | None,
        wanted: dict[int, Headers],
    ) -> None:
        message = stored.message
        if message.retained or message.destination.startswith(_SYSTEM):
            return  # not being published right now
        if not self._published_cap.takes():
            self._capped += 1
            return
        span_id = self._ids.generate_span_id()
        state = None if parent is None else parent.trace_state
        wanted[at] = self._marks.inject(message.headers, trace_id, span_id, state)
        self._sending[stored.sequence] = (made(trace_id, span_id), parent)

    # --- delivering ------------------------------------------------------------------------------

    def _deliver(
        self, receiver: Identity, subscription: str, stored: StoredMessage, pending_list: int
    ) -> None:
        sent = self._waiting.get(stored.sequence)
        if sent is None:  # it was published before a restart, or long ago
            found = self._marks.context_of(stored.message.headers)
            if found is None:
                return
            sent = described(stored.message, stored.sequence, found)
        if not self._delivered_cap.takes():
            self._capped += 1
            return
        now = time.time_ns()
        more: dict[str, str | int] = {
            "network.protocol.name": receiver.protocol,
            "messaging.destination.subscription.name": subscription[:TEXT_MAX],
        }
        if receiver.client_id:
            more["messaging.client.id"] = receiver.client_id[:TEXT_MAX]
        if stored.delivery_count:
            more["tidegate.delivery_count"] = stored.delivery_count + 1
        context = made(sent.context.trace_id, self._ids.generate_span_id())
        owner = receiver.principal
        delivered = Delivered(sent, context, now, stored.delivery_count, more, owner)
        if not pending_list:
            self._end(delivered, now, _DELIVERED)
            return
        again = self._open.take(pending_list, stored.sequence)
        if again is not None:
            self._end(again, now, _RETURNED, _NOT_ACKNOWLEDGED)
        oldest = self._open.put(pending_list, stored.sequence, delivered)
        if oldest is not None:
            self._forgotten += 1
            self._end(oldest, now, _UNKNOWN)

    def _end(self, delivered: Delivered, at: int, outcome: str, problem: str = "") -> None:
        """End a delivery."""
        sent = delivered.sent
        more = {**delivered.more, OUTCOME: outcome}
        times = (delivered.began, at)
        context = delivered.context
        self._emit(
            PROCESS,
            sent,
            context,
            sent.context,
            times,
            more,
            link=sent.context,
            problem=problem,
        )

    def _end_all(self, found: Iterable[Delivered], outcome: str) -> None:
        now = time.time_ns()
        for delivered in found:
            self._end(delivered, now, outcome)

    # --- settling --------------------------------------------------------------------------------

    def _left(self, operation: Acknowledge) -> None:
        """Messages have left a list by an acknowledgement, with a row or without."""
        problem = ""
        if operation.outcome is not Outcome.ACKNOWLEDGED:
            problem = operation.reason or operation.outcome.word
        self._settle(
            operation.pending_list,
            operation.sequences,
            operation.acked_at,
            operation.outcome.word,
            problem,
            maker=operation,
        )

    def _moved(self, operation: Move) -> None:
        """Messages moved to a dead-letter queue, or by an operator."""
        headers = operation.message.headers
        reason = value_of(headers, _DEAD_LETTER_REASON)
        outcome = Outcome.DEAD_LETTERED.word if reason else _MOVED
        context = self._marks.context_of(headers)
        known = None
        if context is not None:
            known = described(operation.message, operation.target_sequence, context)
        maker = operation if operation.row is not None else None
        self._settle(
            operation.pending_list, (operation.sequence,), 0, outcome, reason, known, maker=maker
        )

    def _settle(
        self,
        pending_list: int,
        sequences: Sequence[int],
        at_us: int,
        outcome: str,
        problem: str,
        known: Sent | None = None,
        *,
        maker: Acknowledge | Move | None = None,
    ) -> None:
        """*sequences* have left their list for good.

        Args: at_us: when that was requested, 0: unknown; known: the message at its new place;
            maker: the operation that makes rows of them, if any.
        """
        now = time.time_ns()
        began = at_us * _NS or now
        for offset, sequence in enumerate(sequences):
            delivered = self._open.take(pending_list, sequence)
            if delivered is not None:
                self._end(delivered, began, outcome, problem)
                sent, parent = delivered.sent, delivered.context
            elif outcome == _ACKNOWLEDGED:
                continue  # its delivery was not traced
            else:
                sent = self._waiting.get(sequence) or known
                if sent is None:
                    continue
                parent = sent.context
            if sent.is_queued:  # in a single list, which it has left
                self._waiting.forget(sequence)
            context = made(sent.context.trace_id, self._ids.generate_span_id())
            more = {OUTCOME: outcome}
            self._emit(
                SETTLE,
                sent,
                context,
                parent,
                (began, now),
                more,
                link=sent.context,
                problem=problem,
            )
            if maker is not None and sent is not known:
                self._settled.append(_Settled(maker, offset, sent, context, began))

    # --- rows ------------------------------------------------------------------------------------

    def _remember_rows(self, operations: Sequence[Operation], rows: range) -> None:
        """Remember that what *operations* settled has these *rows*."""
        settled, self._settled = self._settled, []
        if not rows:
            return
        starts: dict[int, int] = {}
        start = rows.start
        for operation in operations:
            starts[id(operation)] = start
            start += _rows_of(operation)
        for maker, offset, sent, context, began in settled:
            number = starts[id(maker)] + offset
            if start != rows.stop:
                # Some messages were not stored and have no row; only non-persistent ones can be.
                if not sent.is_persistent:
                    continue
                number = rows[-1]  # or one before it
            if sent.destination:
                self._rows.put(Row(number, sent, context, began))

    def _tell_rows(self) -> None:
        """Make spans of committed rows, as many as the loop and the queue have room for."""
        self._next_portion = None
        if self._outlet is None:
            return
        now = time.time_ns()
        for committed in self._rows.take(min(self._portion, self._outlet.room)):
            self._tell_row(committed, now)
        if self._rows.is_due:
            loop = asyncio.get_running_loop()
            self._next_portion = loop.call_later(_PORTION_INTERVAL_S, self._tell_rows)

    def _tell_row(self, committed: Committed, now: int) -> None:
        row = committed.row
        sent = row.sent
        context = made(sent.context.trace_id, self._ids.generate_span_id())
        more: dict[str, str | int] = {
            "tidegate.sink": committed.sink,
            "tidegate.table": committed.table,
            "tidegate.ack_seq": row.number,
        }
        if committed.version:
            more["tidegate.table.version"] = committed.version
        times = (row.began, committed.at * _NS or now)
        self._emit(COMMIT, sent, context, row.settled, times, more, link=sent.context)

    # --- what comes back -------------------------------------------------------------------------

    def _returned(self, operation: RecordDelivery) -> None:
        """Messages are back in their list for redelivery, or already redelivered."""
        pending_list = operation.pending_list
        if pending_list not in self._open.by_list:
            return
        now = time.time_ns()
        for sequence, count in zip(operation.sequences, operation.delivery_count, strict=True):
            delivered = self._open.get(pending_list, sequence)
            if delivered is not None and delivered.before < count:
                self._open.take(pending_list, sequence)
                self._end(delivered, now, _RETURNED, _NOT_ACKNOWLEDGED)

    def _emit(
        self,
        operation: str,
        of: Sent,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        more: Mapping[str, str | int],
        *,
        link: SpanContext | None = None,
        problem: str = "",
    ) -> None:
        if self._outlet is not None:
            span = self._spans.make(
                operation, of, context, parent, times, more, link=link, problem=problem
            )
            self._outlet.put(span)


def _nobody_counts(_principal: str, _size: int) -> bool:
    """Stands in until the gateway provides its counter."""
    return True


def _rows_of(operation: Operation) -> int:
    if isinstance(operation, Acknowledge):
        return len(operation.sequences)
    return 1 if isinstance(operation, Move) and operation.row is not None else 0
