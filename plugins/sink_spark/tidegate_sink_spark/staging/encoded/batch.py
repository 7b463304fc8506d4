"""Runs of the log as one Arrow batch, equal to what ``staging.arrow.build_batch`` makes of their rows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from tidegate.spi import EncodedRows
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.encoded.cursor import Cursor, Spans, UnusualError

np: Final[Any] = importlib.import_module("numpy")
pa: Final[Any] = importlib.import_module("pyarrow")
pc: Final[Any] = importlib.import_module("pyarrow.compute")
T = TypeVar("T")

#: How a message with all of its fields begins: an array of 21.
_BEGINNING: Final = b"\xdc\x00\x15"
_NIL: Final = b"\xc0"
_INT_MAX: Final = (1 << 31) - 1
_DAY: Final = 86_400_000_000

#: What :func:`build_encoded` raises for data it does not know; ``build_batch`` may know it.
UNUSUAL: Final = (UnusualError, IndexError, *arrow.UNWRITABLE)


def build_encoded(runs: Sequence[EncodedRows], gateway_id: str, epoch: str) -> Any:
    """Turn *runs*, which have at least one row, into one ``pyarrow.RecordBatch`` of ``SCHEMA``.

    Raises: one of :data:`UNUSUAL`.
    """
    messages = _Messages(list(chain.from_iterable([run.messages for run in runs])))
    count = messages.count
    sizes = np.array(list(map(len, runs)))
    run_of_row = np.repeat(np.arange(len(runs)), sizes)
    # A row's ack sequence is its index here plus this.
    more = np.array([run.first for run in runs], np.int64) - (np.cumsum(sizes) - sizes)

    def of_run(value: Callable[[EncodedRows], str]) -> Any:
        return _per_run([value(run) for run in runs], run_of_row)

    def of_row(values: Callable[[EncodedRows], Sequence[int]]) -> Any:
        return np.fromiter(chain.from_iterable(map(values, runs)), np.int64, count)

    sequences = pa.array(of_row(lambda run: run.sequences))
    acked_at = np.array([run.acked_at for run in runs], np.int64)[run_of_row]
    destinations = messages.destination.texts(keeps_empty=True)
    headers = _Headers(*messages.headers)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(count) + more[run_of_row]),
            pa.repeat(pa.scalar(gateway_id, pa.string()), count),
            pa.repeat(pa.scalar(epoch, pa.string()), count),
            pc.binary_join_element_wise(epoch, sequences.cast(pa.string()), "-"),
            destinations,
            of_run(lambda run: run.protocol),
            of_run(lambda run: run.client_id),
            of_run(lambda run: run.subscription),
            headers.maps(),
            messages.body.array(keeps_empty=True),
            _spread(messages.content_type, count, pa.string(), Spans.texts),
            _times(messages.received_at),
            _times(of_row(lambda run: run.delivered_at)),
            pa.array(acked_at).view(arrow.TIMESTAMP),
            pa.array((acked_at // _DAY).astype(np.int32)).view(pa.date32()),
            sequences,
            _kinds(destinations),
            messages.protocol.texts(),
            messages.protocol_version.texts(),
            messages.client_id.texts(),
            messages.owner.texts(),
            of_run(lambda run: run.principal),
            pa.nulls(count, arrow.REPEATED),
            _spread(messages.correlation_data, count, pa.string(), _correlation_ids),
            pc.coalesce(messages.reply_to.texts(), headers.column(arrow.REPLY_HEADER)),
            headers.column(arrow.TYPE_HEADER),
            headers.column(arrow.GROUP_HEADER),
            _small(messages.priority),
            pa.array(messages.persistent),
            _small(messages.qos),
            pa.array(messages.retain),
            _times(messages.expires_at),
            _times(messages.stored_at),
            _small(of_row(lambda run: run.delivery_counts)),
            of_run(lambda run: run.outcome.word),
            of_run(lambda run: run.reason),
            _spread(messages.payload_format, count, pa.int32(), _small),
            messages.original_name.texts(),
        ],
        schema=arrow.SCHEMA,
    )


class _Messages:
    """The fields of :class:`tidegate.spi.Message`, in order, of every message: their spans, or numbers."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        """Raises: UnusualError, IndexError."""
        cursor = Cursor(messages)
        cursor.skip(_BEGINNING)
        self.count = len(messages)
        self.destination = cursor.texts()
        self.body = cursor.bytes()
        self.headers = cursor.pairs()
        self.received_at = cursor.integers()
        self.expires_at = cursor.integers()
        self.priority = cursor.integers()
        self.persistent = cursor.booleans()
        self.qos = cursor.integers()
        self.retain = cursor.booleans()
        self.protocol = cursor.texts()
        self.client_id = cursor.texts()
        self.original_name = cursor.texts()
        self.content_type = cursor.optional(cursor.texts)
        self.correlation_data = cursor.optional(cursor.bytes)
        self.reply_to = cursor.texts()
        cursor.booleans()  # retained
        self.payload_format = cursor.optional(cursor.integers)
        cursor.skip(_NIL)  # large: no body is stored elsewhere
        self.owner = cursor.texts()
        self.protocol_version = cursor.texts()
        self.stored_at = cursor.integers()
        cursor.check_end()


class _Headers:
    """The headers of all rows, none of which repeats a name."""

    def __init__(self, counts: Any, names: Spans, values: Spans) -> None:
        """Args: counts: of each row. Raises: UnusualError; ArrowInvalid for text that is not UTF-8."""
        self._counts = counts
        self._keys = names.texts(keeps_empty=True)
        self._values = values.texts(keeps_empty=True)
        found = self._keys.dictionary_encode()
        self._names = found.dictionary.to_pylist()
        self._which = np.asarray(found.indices).astype(np.int64)
        self._row_of_pair = np.repeat(np.arange(len(counts)), counts)
        if not self._are_alike() and self._repeat():
            raise UnusualError

    def _are_alike(self) -> bool:
        """Whether all rows have the same names in the same order, none twice."""
        width = int(self._counts[0])
        if len(self._names) != width or len(self._which) != width * len(self._counts):
            return False
        return bool((self._which == np.tile(self._which[:width], len(self._counts))).all())

    def _repeat(self) -> bool:
        """Whether a row has a name twice."""
        pairs = np.sort(self._row_of_pair * len(self._names) + self._which)
        return bool((pairs[1:] == pairs[:-1]).any())

    def maps(self) -> Any:
        """One map per row."""
        offsets = np.zeros(len(self._counts) + 1, np.int32)
        np.cumsum(self._counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), self._keys, self._values)

    def column(self, name: str) -> Any:
        """The values of one header; NULL where it is empty or missing."""
        count = len(self._counts)
        if name not in self._names:
            return pa.nulls(count, pa.string())
        pairs = np.flatnonzero(self._which == self._names.index(name))
        found = self._values.take(pa.array(pairs))
        some = pc.if_else(pc.equal(pc.binary_length(found), 0), None, found)
        return _at(self._row_of_pair[pairs], some, count)


def _spread(
    optional: tuple[Any, T | None], count: int, kind: Any, column: Callable[[T], Any]
) -> Any:
    """The *column* of what :meth:`Cursor.optional` found; NULL elsewhere."""
    there, found = optional
    return pa.nulls(count, kind) if found is None else _at(there, column(found), count)


def _at(there: Any, values: Any, count: int) -> Any:
    """A column of *count* rows, with *values* in the rows *there*, and NULL in the others."""
    if len(there) == count:
        return values
    places = np.full(count, -1)
    places[there] = np.arange(len(there))
    return values.take(pa.array(places, mask=places < 0))


def _per_run(values: Sequence[str], run_of_row: Any) -> Any:
    """A column of texts that are the same within a run; NULL for none."""
    if values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0] or None, pa.string()), len(run_of_row))
    return pa.array([value or None for value in values], pa.string()).take(pa.array(run_of_row))


def _times(values: Any) -> Any:
    """A column of times; NULL for 0 (never or unknown), and for times that readers do not know."""
    return pa.array(values, mask=(values <= 0) | (values > arrow.TIME_MAX)).view(arrow.TIMESTAMP)


def _small(values: Any) -> Any:
    """A column of 32 bits. Raises: UnusualError."""
    if (values > _INT_MAX).any():
        raise UnusualError
    return pa.array(values.astype(np.int32))


def _kinds(destinations: Any) -> Any:
    """The part before each one's colon."""
    found = destinations.dictionary_encode()
    kinds = [name.partition(":")[0] or None for name in found.dictionary.to_pylist()]
    return pa.array(kinds, pa.string()).take(found.indices)


def _correlation_ids(data: Spans) -> Any:
    values = data.array().to_pylist()
    return pa.array(
        [None if value is None else arrow.correlation_id(value) for value in values], pa.string()
    )
