"""The trace context of a message: W3C Trace Context in its headers, ``traceparent`` and ``tracestate``.

MQTT 5.0 carries it in user properties of these names, STOMP in headers.

What this gateway traces has an entry of its own in front of ``tracestate``: a mark of its service and the
span in ``traceparent``. By that a delivery, also after a restart, knows the messages that were
traced when they were published from those that merely came with a context.
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
#: Entries of a ``tracestate`` (Trace Context section 3.3.1.1); the last ones are left out for ours.
_ENTRIES_MAX: Final = 32
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_PROPAGATOR: Final = TraceContextTextMapPropagator()
#: A context as it is made here.
_OWN: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")
#: Where the flags' second digit is, in versions that are known and those to come.
_FLAGS_AT: Final = 54


def is_sampled(traceparent: str) -> bool:
    """It says so, if it is one: a quick look."""
    return traceparent[_FLAGS_AT : _FLAGS_AT + 1] in _ODD


_ODD: Final = frozenset("13579bdf")


def value_of(headers: Headers, name: str) -> str:
    """Of the first header of that name; "" when there is none."""
    for key, value in headers:
        if key == name:
            return value
    return ""


def extract(headers: Headers) -> SpanContext | None:
    """The context that a message came with; None when it has none, or one that is malformed."""
    carrier = {name: value_of(headers, name) for name in (PARENT, STATE)}
    found = get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
    return found if found.is_valid else None


class Marks:
    """What this gateway's own contexts are known by. Args: service: its name."""

    __slots__ = ("_begin",)

    def __init__(self, service: str) -> None:
        self._begin = f"{_KEY}={zlib.crc32(service.encode()):08x}."

    def inject(
        self, headers: Headers, trace_id: int, span_id: int, state: TraceState | None
    ) -> Headers:
        """*headers* with this context in the place of their own, or behind them.

        Args: state: what came with the message.
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
        """They may be of a message that this gateway traces: a quick look."""
        for name, value in headers:
            if name == STATE:
                return value.startswith(self._begin)
        return False

    def context_of(self, headers: Headers) -> SpanContext | None:
        """The context in them, where this gateway made it."""
        match = _OWN.fullmatch(value_of(headers, PARENT))
        if match is None or not value_of(headers, STATE).startswith(self._begin + match[2]):
            return None
        return made(int(match[1], 16), int(match[2], 16))


def made(trace_id: int, span_id: int) -> SpanContext:
    """A context of this gateway's, sampled."""
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)
