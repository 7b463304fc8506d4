"""Builds spans for the SDK, each once its operation is over.

They are built whole, not by a ``Tracer``: their ids must be known before the message is stored,
their times are those of the gateway's events, and sampling is decided before there is anything to
record. Names and attributes follow OpenTelemetry's semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from tidegate.spi import Message, names
from tidegate.spi.messages import body_bytes

_SCOPE: Final = InstrumentationScope("tidegate.traces")
_UNSET: Final = Status()
#: Longest client-chosen text, so that an attribute is not as large as a packet may be.
TEXT_MAX: Final = 256
#: Memory of one with its dictionary, numbers and context, without names: measured, rounded up.
_SENT_BYTES: Final = 700

SEND: Final = "send"
PROCESS: Final = "process"
SETTLE: Final = "settle"
COMMIT: Final = "commit"
_KINDS: Final = {
    SEND: SpanKind.PRODUCER,
    PROCESS: SpanKind.CONSUMER,
    SETTLE: SpanKind.CLIENT,
    COMMIT: SpanKind.CLIENT,
}

OUTCOME: Final = "tidegate.outcome"


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A traced message.

    Attributes:
        context: the one that it carries.
        name: of its destination, for spans; destination: the canonical one, "" for a long one.
        is_queued: whether that is a queue.
        is_persistent: as its producer asked.
        owner: the principal that published it, "" if the gateway does not record it.
        size: memory that it takes, bytes.
    """

    context: SpanContext
    name: str
    attributes: dict[str, str | int | bool]
    destination: str
    is_queued: bool
    is_persistent: bool
    owner: str
    size: int


def described(message: Message, sequence: int, context: SpanContext) -> Sent:
    """What spans say about *message*."""
    destination = message.destination
    name = names.name_of(destination)[:TEXT_MAX]
    attributes: dict[str, str | int | bool] = {
        "messaging.system": "tidegate",
        "messaging.destination.name": name,
        "messaging.message.id": str(sequence),
        "messaging.message.body.size": body_bytes(message),
        "tidegate.destination": destination[:TEXT_MAX],
    }
    if names.is_temporary(destination):
        attributes["messaging.destination.temporary"] = True
        name = "(temporary)"  # one name for all, not one each
    is_queued = names.is_queue(destination)
    kept = destination if len(destination) <= TEXT_MAX else ""  # a name may have 64 KiB
    # Three copies are kept: the name, the attribute and `kept`, each at most TEXT_MAX.
    size = _SENT_BYTES + len(name) + 2 * len(destination[:TEXT_MAX])
    return Sent(context, name, attributes, kept, is_queued, message.persistent, message.owner, size)


class SpanMaker:
    """Makes spans. Args: resource: their sender."""

    __slots__ = ("_resource",)

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    def make(
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
    ) -> ReadableSpan:
        """One span.

        Args: operation: ``send``, ``process``, ``settle`` or ``commit``; times: begin and end,
            nanoseconds since the epoch; more: attributes; link: another span that it belongs to;
            problem: what went wrong.
        """
        began, ended = times
        attributes: dict[str, str | int | bool] = {
            **of.attributes,
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            **{
                key: value[:TEXT_MAX] if type(value) is str else value
                for key, value in more.items()
            },
        }
        return ReadableSpan(
            name=f"{operation} {of.name}",
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=() if link is None else (Link(link),),
            kind=_KINDS[operation],
            status=Status(StatusCode.ERROR, problem) if problem else _UNSET,
            start_time=min(began, ended),
            end_time=ended,
            instrumentation_scope=_SCOPE,
        )
