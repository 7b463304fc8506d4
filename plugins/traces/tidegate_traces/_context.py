"""The trace context of a message: W3C Trace Context in its headers, ``traceparent`` and ``tracestate``.

MQTT 5.0 carries it in user properties of these names, STOMP in headers.

A message traced by this gateway gets its own entry at the front of ``tracestate``: a mark of its
service, and the span in ``traceparent``. With that a delivery, even after a restart, can tell
messages that were traced at their publish from those that merely came with a context.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from opentelemetry.trace import (
    SpanContext,
    TraceFlags,
    TraceState,
    format_span_id,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidegate.spi import Headers

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
_KEY: Final = "tidegate"
#: Most entries of a ``tracestate`` (Trace Context section 3.3.1.1); ours pushes out the last.
_ENTRIES_MAX: Final = 32
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_PROPAGATOR: Final = TraceContextTextMapPropagator()
#: A context as made here.
_OWN: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")
#: Position of the flags' second digit, in known and future versions.
_FLAGS_AT: Final = 54


def is_sampled(traceparent: str) -> bool:
    """Whether it claims to be sampled: a quick check, not a full parse."""
    return traceparent[_FLAGS_AT : _FLAGS_AT + 1] in _ODD


_ODD: Final = frozenset("13579bdf")


def value_of(headers: Headers, name: str) -> str:
    """The value of the first header of that name; "" for none."""
    for key, value in headers:
        if key == name:
            return value
    return ""


def extract(headers: Headers) -> SpanContext | None:
    """The context that a message came with; None if it is missing or malformed."""
    carrier = {name: value_of(headers, name) for name in (PARENT, STATE)}
    found = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
    return found if found.is_valid else None


class Marks:
    """Marks and recognises this gateway's own contexts. Args: service: its name."""

    __slots__ = ("_begin",)

    def __init__(self, service: str) -> None:
        self._begin = f"{_KEY}={zlib.crc32(service.encode()):08x}."

    def inject(
        self, headers: Headers, trace_id: int, span_id: int, state: TraceState | None
    ) -> Headers:
        """*headers* with this context replacing theirs, or appended.

        Args: state: the ``tracestate`` that came with the message.
        """
        span = format_span_id(span_id)
        entries = [] if state is None else list(state.items())
        others = [f"{key}={value}" for key, value in entries if key != _KEY][: _ENTRIES_MAX - 1]
        given = {
            PARENT: f"00-{format_trace_id(trace_id)}-{span}-01",
            STATE: ",".join((f"{self._begin}{span}", *others)),
        }
        found: list[tuple[str, str]] = []
        for name, value in headers:
            if name not in (PARENT, STATE):
                found.append((name, value))
            elif name in given:
                found.append((name, given.pop(name)))
        return (*found, *given.items())

    def is_own(self, headers: Headers) -> bool:
        """Whether the message may be one traced by this gateway: a quick check."""
        for name, value in headers:
            if name == STATE:
                return value.startswith(self._begin)
        return False

    def context_of(self, headers: Headers) -> SpanContext | None:
        """The context in *headers*, if this gateway made it."""
        match = _OWN.fullmatch(value_of(headers, PARENT))
        if match is None or not value_of(headers, STATE).startswith(self._begin + match[2]):
            return None
        return made(int(match[1], 16), int(match[2], 16))


def made(trace_id: int, span_id: int) -> SpanContext:
    """A sampled context of this gateway."""
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
