"""Large PUBLISH packets of one connection; see :mod:`tidegate_protocols._large_in`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Protocol, final

from tidegate.spi import GatewayError, LargeBodies, LargeBody
from tidegate_protocols._large_in import LargeIn
from tidegate_protocols._pace import Pace, Timer
from tidegate_protocols.mqtt._reasons import RefusedError
from tidegate_protocols.mqtt.codec.codec import Codec
from tidegate_protocols.mqtt.codec.codes import ReasonCode
from tidegate_protocols.mqtt.codec.large_head import TextCheck
from tidegate_protocols.mqtt.codec.packets import Event, LargePublish, Publish
from tidegate_protocols.mqtt.messages.incoming import Coming


class Publisher(Protocol):
    """Where large messages go; see :class:`tidegate_protocols.mqtt.messages.incoming.Incoming`."""

    def begin_large(self, packet: Publish) -> Coming:
        """Check a PUBLISH whose body is still to come. Raises: GatewayError."""
        ...

    def text_check(self, packet: Publish) -> TextCheck | None:
        """How its body is to be checked; None: not at all."""
        ...

    def refuse_large(self, coming: Coming, error: GatewayError) -> None:
        """It cannot be published. Raises: *error*, if the connection has to end for it."""
        ...

    def end_large(self, coming: Coming, body: LargeBody | None, now_us: int) -> None:
        """All of it is here; body: None when it was not kept. Raises: GatewayError."""
        ...


@final
class LargePublishes(LargeIn[Event, LargePublish, Coming]):
    """In MQTT 5.0 a refused message is answered, in its turn, and the connection continues.

    Args: now_us: microseconds since the epoch.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        codec: Codec,
        publisher: Publisher,
        *,
        now_us: Callable[[], int],
        spawn: Callable[[Coroutine[None, None, None]], Timer],
        adjust: Callable[[], None],
        failed: Callable[[GatewayError, object], None],
        go_on: Callable[[], None],
        crashed: Callable[[Exception], None],
        pace: Pace,
    ) -> None:
        super().__init__(
            bodies,
            codec,
            spawn=spawn,
            adjust=adjust,
            failed=failed,
            go_on=go_on,
            crashed=crashed,
            pace=pace,
        )
        self._codec = codec
        self._publisher = publisher
        self._now_us = now_us

    def _next(self) -> Event | None:
        events = self._codec.events(1)
        return events[0] if events else None

    def _as_large(self, event: Event) -> LargePublish | None:
        if not isinstance(event, LargePublish):
            return None
        head = event.head
        if head.qos == 2 and any(
            body.head.packet.packet_id == head.packet_id for body in self._queue
        ):
            return None  # it may be the same message as one of them, which will be known then
        return event

    def _admit(self, event: LargePublish) -> Coming:
        coming = self._publisher.begin_large(event.head)
        coming.text = self._publisher.text_check(event.head)
        return coming

    def _is_wanted(self, head: Coming) -> bool:
        return head.is_wanted

    def _check(self, head: Coming, data: bytes) -> None:
        if head.text is not None and not head.text.accepts(data, is_last=self._codec.end_body()):
            raise RefusedError(ReasonCode.PAYLOAD_FORMAT_INVALID, "the payload is not UTF-8")

    def _refuse(self, head: Coming, error: GatewayError) -> None:
        self._publisher.refuse_large(head, error)

    def _publish(self, head: Coming, body: LargeBody | None) -> None:
        self._publisher.end_large(head, body, self._now_us())
