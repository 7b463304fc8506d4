"""Publishing for operators, as one unit of the filling turn: no client waits meanwhile, and none is throttled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from tidegate.broker.core import BrokerCore
from tidegate.broker.operate.messages.over_messages import durable, is_full
from tidegate.broker.owner import Origin
from tidegate.broker.publish.access import Requester
from tidegate.broker.route.router import Route
from tidegate.spi import GatewayError, Message, body_bytes
from tidegate.spi.replay import ReplayedMessage

#: How long one step fills the turn before others get theirs.
_SLICE_S: Final = 0.002
#: Messages between two looks at the clock.
_LOOK_COUNT: Final = 16


@dataclass(slots=True)
class Step:
    """What one step put into the filling turn. Attributes: problem: why it ended early, if it did."""

    count: int = 0
    problem: GatewayError | None = None


class Publishing:
    """See the module. On the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    async def publish(self, requester: Requester, item: ReplayedMessage) -> None:
        """Publish one message; it is durable then. Raises: GatewayError: nothing has happened."""
        await self.make_ready((item,), requester)
        writer = self._core.writer
        writer.check_writable()
        first, first_sequence = len(writer.turn.operations), writer.next_sequence
        undo: list[Callable[[], None]] = []
        step = self.fill(requester, (item,), undo)
        if not step.count:
            assert step.problem is not None
            raise step.problem
        await self.durable(first, first_sequence, step.count, undo)

    def durable(
        self, first: int, first_sequence: int, count: int, undo: list[Callable[[], None]]
    ) -> asyncio.Future[None]:
        """Wait until what was filled in is durable. Args: first, first_sequence: the first operation and message of
        those that stand or fall together; count: messages. Raises, in the future: StoreError."""
        writer = self._core.writer
        turn, end_sequence = writer.turn, writer.next_sequence
        writer.own_sequences += count
        undo.append(lambda: turn.drop_added(first_sequence, end_sequence))
        return durable(self._core.flow, first, undo=undo)

    async def make_ready(self, part: tuple[ReplayedMessage, ...], requester: Requester) -> None:
        """Make missing queues, which is not part of the unit, and find a turn with room.

        Raises: GatewayError of the first message; a later one's error ends the step before it.
        """
        core, flow = self._core, self._core.flow
        until = perf_counter() + _SLICE_S
        routes = core.publisher.routes
        new = {item.destination for item in part if item.destination not in routes}
        for destination in dict.fromkeys(item.destination for item in part):
            if destination not in new:
                continue
            try:
                core.writer.check_writable()
                core.access.check_destination(requester, destination)
                core.publisher.resolve(destination, requester.principal)
            except GatewayError:
                if destination == part[0].destination:
                    raise
                break
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + _SLICE_S
        while not flow.takes(flow.turn, len(part)):
            await durable(flow)

    def fill(
        self,
        requester: Requester,
        part: tuple[ReplayedMessage, ...],
        undo: list[Callable[[], None]],
    ) -> Step:
        """Add as much of *part* to the filling turn as there is room and time for; the caller makes the unit."""
        core = self._core
        flow, publisher, turn = core.flow, core.publisher, core.writer.turn
        now = core.writer.now()
        owner = requester.principal
        until = perf_counter() + _SLICE_S
        step = Step()
        for item in part:
            try:
                message = core.access.check_publish(requester, _message(item, now))
                route = publisher.routes.get(message.destination)
                if route is None:  # gone meanwhile, or an interceptor chose it
                    route = publisher.resolve(message.destination, owner)
                self._check_room(route, message)
                route = publisher.publish(message, Origin(owner, ""), undo)
            except GatewayError as error:
                step.problem = error
                return step
            step.count += 1
            if route.width and flow.add_own_work(route.width):
                break
            if turn.body_bytes > flow.turn_bytes_max:
                break
            if not step.count % _LOOK_COUNT and perf_counter() >= until:
                break
        return step

    def _check_room(self, route: Route, message: Message) -> None:
        """Refuse for now where a producer would wait, or a queue would lose messages for these.

        What a subscription with its own limit loses is up to its policy, as ever.
        Raises: FlowControlError.
        """
        full = self._core.flow.full_lists
        for pending_list in route.stored:
            limit = pending_list.limit
            lacks_room = pending_list in full
            if limit is not None and pending_list.is_queue:
                room, room_bytes = limit.spare()
                if room <= 0 or room_bytes < body_bytes(message):  # otherwise larger than any room
                    is_empty = not pending_list.cursor.size
                    is_adding = self._core.writer.is_adding(pending_list)
                    lacks_room = lacks_room or not is_empty or is_adding
            if lacks_room:
                raise is_full(pending_list)


def _message(item: ReplayedMessage, now: int) -> Message:
    return Message(
        item.destination,
        item.body,
        item.headers,
        now,
        item.expires_at,
        item.priority,
        item.persistent,
        item.qos,
        protocol=item.protocol,
        original_name=item.original_name,
        content_type=item.content_type,
        correlation_data=item.correlation_data,
        reply_to=item.reply_to,
        payload_format=item.payload_format,
    )
