"""Spans on their way to the collector: counted, bounded, and sent by the SDK in its own thread.

The event loop only puts finished spans into a queue, and never waits, whatever the collector does.
A span that finds the queue full is dropped, and a batch that could not be sent is lost; both are
counted, and logged once until spans arrive again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final, final

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tidegate_traces._options import TracesOptions

_log = logging.getLogger("tidegate.traces")

SERVICE: Final = "tidegate"

#: What :meth:`Outlet.counts` returns before there is one.
NOTHING_SENT: Final[Mapping[str, int]] = {
    "traces.waiting": 0,
    "traces.sent": 0,
    "traces.lost": 0,
    "traces.dropped": 0,
}

#: The exporter's own logger: it reports every failure, and alone knows why.
_EXPORTER_LOG: Final = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class _Words(logging.Handler):
    """Keeps the exporter's messages about a failure, instead of logging each try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._first = self.text = ""

    def clear(self) -> None:
        """Start a new request."""
        self._first = self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # The first says why; the last, that it gives up.
        self.text = text if not self._first else f"{self._first} {text}"
        self._first = self._first or text


def resource_of(options: TracesOptions) -> Resource:
    """The sender: from the options, ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES``."""
    if options.service_name:
        return Resource.create({SERVICE_NAME: options.service_name})
    found = Resource.create()
    # Without a name, the SDK would use unknown_service and the process's name.
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: SERVICE}))
    return found


class _Counted(SpanExporter):
    """An exporter that counts sent and lost spans. Called in one thread."""

    def __init__(self, exporter: SpanExporter, words: _Words) -> None:
        self._exporter = exporter
        self._words = words
        self._is_failing = False
        self.taken = self.sent = self.lost = 0
        self.is_over = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        self.taken += len(spans)
        if self.is_over:
            self.lost += len(spans)
            return SpanExportResult.FAILURE
        self._words.clear()
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            if self._is_failing:
                self._is_failing = False
                _log.info("collector=back lost=%d: spans are sent again", self.lost)
        else:
            self.lost += len(spans)
            if not self._is_failing:
                self._is_failing = True
                _log.warning(
                    "collector=failing: spans are lost until it answers again: %s", self._words.text
                )
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See SpanExporter."""
        return self._exporter.force_flush(timeout_millis)


@final
class Outlet:
    """See the module. Made on the event loop; its thread runs until :meth:`close`."""

    def __init__(self, options: TracesOptions) -> None:
        self._words = _Words()
        _EXPORTER_LOG.addHandler(self._words)
        _EXPORTER_LOG.propagate = False
        exporter = OTLPSpanExporter(
            endpoint=options.endpoint or None,
            certificate_file=None if options.certificate is None else str(options.certificate),
            headers=options.sent_headers or None,
            timeout=options.timeout,
            compression=_COMPRESSIONS[options.compression],
        )
        self._exporter = _Counted(exporter, self._words)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=options.queue_max,
            schedule_delay_millis=options.batch_interval * 1000,
            max_export_batch_size=options.batch_max,
        )
        self._queue_max = options.queue_max
        self._stop_timeout = options.stop_timeout
        self._put = 0
        self._dropped = 0
        self._told = False

    def put(self, span: ReadableSpan) -> None:
        """Send *span*, or drop it when too many wait."""
        waiting = self._put - self._exporter.taken
        if waiting >= self._queue_max:
            self._dropped += 1
            if not self._told:
                self._told = True
                _log.warning(
                    "queue_max=%d: spans are dropped, because the collector takes fewer than are made",
                    self._queue_max,
                )
            return
        if self._told and waiting <= self._queue_max // 2:
            self._told = False
            _log.info("dropped=%d: there is room for spans again", self._dropped)
        self._put += 1
        self._processor.on_end(span)

    @property
    def room(self) -> int:
        """Room for spans that can wait: half of the queue is left for those that cannot."""
        return max(0, self._queue_max // 2 - (self._put - self._exporter.taken))

    def counts(self) -> Mapping[str, int]:
        """See Observer."""
        exporter = self._exporter
        counts = (self._put - exporter.taken, exporter.sent, exporter.lost, self._dropped)
        return dict(zip(NOTHING_SENT, counts, strict=True))

    async def close(self) -> None:
        """Send waiting spans, for as long as the options allow; the rest is lost."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def told() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        def end() -> None:
            self._processor.shutdown()
            told()

        # Not in the loop's pool: the process waits for its threads at exit, and this one may be
        # stuck on a collector that does not answer.
        threading.Thread(target=end, name="traces end", daemon=True).start()
        try:
            async with asyncio.timeout(self._stop_timeout):
                await done.wait()
        except TimeoutError:
            self._exporter.is_over = True
            left = self._put - self._exporter.sent - self._exporter.lost
            _log.warning("stop_timeout=%g: %d spans are lost", self._stop_timeout, left)
        _EXPORTER_LOG.removeHandler(self._words)
        _EXPORTER_LOG.propagate = True


_COMPRESSIONS: Final = {
    "": None,
    "none": Compression.NoCompression,
    "gzip": Compression.Gzip,
    "deflate": Compression.Deflate,
}
