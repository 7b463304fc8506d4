"""Large SENDs of one connection; see :mod:`tidegate_protocols._large_in`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import final

from tidegate.spi import GatewayError, LargeBodies, LargeBody
from tidegate_protocols._large_in import LargeIn
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.frames import AckRun, Frame, LargeSend


@final
class LargeSends(LargeIn[Frame | AckRun | LargeSend, LargeSend, Frame]):
    """STOMP has no answer to a frame but the end: what is wrong with one ends the connection.

    Args: check: looks at a head; publish: called when its body is in the store. Both raise
    GatewayError.
    """

    def __init__(
        self,
        bodies: LargeBodies,
        decoder: Decoder,
        *,
        check: Callable[[Frame], None],
        publish: Callable[[Frame, LargeBody], None],
        adjust: Callable[[], None],
        failed: Callable[[GatewayError, object], None],
        go_on: Callable[[], None],
        crashed: Callable[[Exception], None],
    ) -> None:
        super().__init__(
            bodies,
            decoder,
            spawn=asyncio.get_running_loop().create_task,
            adjust=adjust,
            failed=failed,
            go_on=go_on,
            crashed=crashed,
        )
        self._decoder = decoder
        self._check_head = check
        self._send = publish

    def _next(self) -> Frame | AckRun | LargeSend | None:
        return next(self._decoder.events(), None)

    def _as_large(self, event: Frame | AckRun | LargeSend) -> LargeSend | None:
        return event if isinstance(event, LargeSend) else None

    def _admit(self, event: LargeSend) -> Frame:
        self._check_head(event.head)
        return event.head

    def _publish(self, head: Frame, body: LargeBody | None) -> None:
        assert body is not None, "a body that is not kept ends the connection"
        self._send(head, body)
