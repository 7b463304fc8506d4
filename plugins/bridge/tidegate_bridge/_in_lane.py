"""An incoming rule.

A message from the process is published with the id that the other broker gave it. The process
acknowledges it there only once it is durable. When one fails, nothing after it is published either
and the attempt ends: the other broker redelivers all of it, in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from tidegate.spi import BrokerConnection, GatewayError, StoredMessage
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._lane import AT_ONCE, Lane


class _Publisher:
    """A :class:`tidegate.spi.ClientPeer`: one attempt of an incoming rule."""

    has_unsent = False

    def __init__(self, lane: InLane, epoch: int) -> None:
        self.epoch = epoch
        self.is_over = False
        self.is_let_in = False  # here
        self.is_subscribed = False  # there
        self.is_throttled = False
        self.wake = asyncio.Event()
        self.waiting: deque[protocol.Bring] = deque()
        self.sizes: dict[int, int] = {}
        self._lane = lane

    def confirmed(self, tokens: Sequence[object]) -> None:
        if not self.is_over:
            self._lane.confirmed(self, [token for token in tokens if isinstance(token, int)])

    def failed(self, token: object, error: GatewayError) -> None:
        self._lane.failed(self, error)

    def deliver(self, key: str, messages: Sequence[StoredMessage]) -> None:
        raise AssertionError("it subscribes to nothing")

    def throttle(self, paused: bool, *, at_once: bool = False) -> None:
        self.is_throttled = paused
        self.wake.set()

    def closed(self, error: GatewayError) -> None:
        self._lane.failed(self, error)


class InLane(Lane):
    """An incoming rule."""

    _publisher: _Publisher | None = None

    @property
    def on_the_way(self) -> tuple[int, int]:
        found = self._publisher
        return (0, 0) if found is None else (len(found.sizes), sum(found.sizes.values()))

    def _ready(self) -> None:
        self._give_up()
        publisher = self._publisher = _Publisher(self, self.epoch)
        self._spawn("publish", self._publish(publisher))

    def lost(self, problem: str, remedy: str, again_s: float) -> None:
        self._give_up()
        super().lost(problem, remedy, again_s)

    def _give_up(self) -> None:
        if self._publisher is not None:
            self._publisher.is_over = True
            self._publisher.wake.set()
            self._publisher = None

    def _heard(self, told: protocol.FromProcess) -> None:
        publisher = self._publisher
        if isinstance(told, protocol.Bring):
            if self._is_over:
                return
            if publisher is not None and publisher.epoch == told.epoch:
                publisher.sizes[told.number] = len(told.message.body)
                publisher.waiting.append(told)
                publisher.wake.set()
        elif isinstance(told, protocol.Flows):
            if publisher is not None:
                publisher.is_subscribed = True
                self._flows_if_both(publisher)
        elif isinstance(told, protocol.Done):
            self.looped += told.looped
        else:
            super()._heard(told)

    def _flows_if_both(self, publisher: _Publisher) -> None:
        if publisher.is_subscribed and publisher.is_let_in and not publisher.is_over:
            self._flows()

    async def _publish(self, publisher: _Publisher) -> None:
        connection: BrokerConnection | None = None
        try:
            connection = await self._connect(publisher)
            publisher.is_let_in = True
            self._flows_if_both(publisher)
            await self._publish_all(publisher, connection)
        except GatewayError as error:
            self.failed(publisher, error)
        finally:
            publisher.is_over = True
            if connection is not None:
                connection.disconnect(graceful=True)

    async def _publish_all(self, publisher: _Publisher, connection: BrokerConnection) -> None:
        done = 0
        while not publisher.is_over:
            if not publisher.waiting or publisher.is_throttled or self._is_over:
                publisher.wake.clear()
                await publisher.wake.wait()
                continue
            item = publisher.waiting.popleft()
            message = item.message
            large = self._broker.large_bodies
            if large is not None and len(message.body) >= large.size_min:
                connection.check_publish(message.destination)
                writer = large.create(len(message.body))
                handle = await writer.finish(message.body)
                if publisher.is_over:
                    return
                message = msgspec.structs.replace(message, body=b"", large=handle)
            message = msgspec.structs.replace(message, client_id=self._options.name)
            connection.publish(message, item.number, duplicate_id=item.duplicate_id)
            done += 1
            if not done % AT_ONCE:
                await asyncio.sleep(0)

    @property
    def is_settled(self) -> bool:
        found = self._publisher
        return found is None or len(found.sizes) <= len(found.waiting)

    def confirmed(self, publisher: _Publisher, numbers: list[int]) -> None:
        """The messages *numbers* are durable."""
        size = sum(publisher.sizes.pop(number, 0) for number in numbers)
        self._has_moved(len(numbers), size)
        self._tell(protocol.Done(self.number, publisher.epoch, numbers))
        self._settled.set()

    def failed(self, publisher: _Publisher, error: GatewayError) -> None:
        """A publish failed, or the connection ended: everything after it is redelivered."""
        if publisher.is_over:
            return
        publisher.is_over = True
        publisher.wake.set()
        self._fail(error)
