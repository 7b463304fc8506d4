"""Publishing messages again, exactly once: see :mod:`tidegate.spi.replay`.

Each step is one unit of the filling turn: messages, and the replay's record with the position after them.
After a crash both are there or neither; when the store has no room both are taken back. The next step
begins when the previous one is durable, so a position never goes past a message that was dropped.

The record is the retained message of one of the gateway's own topics, ``$SYS/broker/replays/ID``: every store keeps
such messages, replaces them within a batch, carries them over to another store, and shows them to clients
that may read ``$SYS``. Duplicate ids would not do: a ring forgets, and may be switched off
(docs/decisions/0017-replay.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.broker.core import BrokerCore
from tidegate.broker.operate.messages.over_messages import durable
from tidegate.broker.operate.messages.publishing import Publishing, Step
from tidegate.broker.publish.access import OwnWrite, Requester, check_own
from tidegate.broker.publish.system_topics import is_system
from tidegate.spi import (
    AccessError,
    ClearRetained,
    FlowControlError,
    GatewayError,
    Message,
    RequestError,
    names,
)
from tidegate.spi.operate import WORK_S
from tidegate.spi.replay import (
    BeginReplay,
    PublishReplayed,
    Replay,
    ReplayedMessage,
)

#: Where the records are.
_PREFIX: Final = names.topic("$SYS.broker.replays.")

#: Messages of one step at most.
_STEP_COUNT: Final = 512


class _Record(msgspec.Struct, frozen=True):
    """The record of a replay, as JSON."""

    plan: str
    position: str
    count: int = 0
    is_complete: bool = False


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Record).decode


class Replaying:
    """See the module. On the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._publishing = Publishing(core)
        # A command that was killed may have left a request that is still running.
        self._locks: dict[str, asyncio.Lock] = {}
        # Replays whose last step nobody saw end: the request was given up meanwhile.
        self._unsure: set[str] = set()

    async def begin(self, request: BeginReplay) -> Replay:
        """Raises: FlowControlError, StoreError."""
        async with self._lock(request.replay):
            record = await self._durable_record(request.replay)
            if record is not None:
                return _answer(request.replay, record)
            if not request.plan:
                return Replay(request.replay, "", "", is_new=True)
            self._core.writer.check_writable()
            record = _Record(request.plan, request.position)
            first = len(self._core.writer.turn.operations)
            undo: list[Callable[[], None]] = []
            self._keep(request.replay, record, undo)
            await durable(self._core.flow, first, undo=undo)
            return msgspec.structs.replace(_answer(request.replay, record), is_new=True)

    async def forget(self, replay: str) -> bool:
        """Returns: there was one. Raises: StoreError."""
        async with self._lock(replay):
            core = self._core
            if self._record(replay) is None:
                return False
            core.writer.check_writable(adds=False)
            operation, _ = core.retained.replace(Message(_PREFIX + replay, b""))
            if isinstance(operation, ClearRetained):
                core.writer.add_operation(operation)
            await durable(core.flow)
            return True

    async def check_destination(self, requester: Requester, destination: str) -> str:
        """Why it takes no messages from *requester*; "" when it does. Nothing is made."""
        core = self._core
        try:
            if not (names.is_queue(destination) or names.is_topic(destination)):
                raise RequestError(f"{destination!r} is neither a queue nor a topic")
            names.check_name(names.name_of(destination))
            core.destinations.check_levels(destination)
            if names.is_temporary(destination):
                raise RequestError("a temporary destination ends with its connection")
            if is_system(destination):
                raise RequestError("only the gateway itself publishes there")
            core.access.check_destination(requester, destination)
        except FlowControlError:
            return ""  # it may by then
        except (AccessError, RequestError, ValueError) as error:
            return str(error)
        return ""

    async def publish(self, requester: Requester, request: PublishReplayed) -> Replay:
        """Raises: RequestError when there is no such replay; StoreError."""
        async with self._lock(request.replay):
            record = await self._durable_record(request.replay)
            if record is None:
                raise RequestError(
                    f"there is no replay {request.replay!r}; begin it first; perhaps it "
                    "was forgotten"
                )
            if record.position != request.after or record.is_complete:
                return _answer(request.replay, record)
            return await self._publish(requester, request, record)

    async def _publish(
        self, requester: Requester, request: PublishReplayed, record: _Record
    ) -> Replay:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WORK_S
        messages, done = request.messages, 0
        problem: GatewayError | None = None
        while problem is None and (done < len(messages) or not done) and loop.time() < ends_at:
            part = messages[done : done + _STEP_COUNT]
            try:
                await self._publishing.make_ready(part, requester)
                step, record, waits = self._step(requester, request, record, part, done)
                self._unsure.add(request.replay)
                await waits
                self._unsure.discard(request.replay)
                done += step.count
                problem = step.problem
            except GatewayError as error:
                self._unsure.discard(request.replay)
                problem = error
                kept = self._record(request.replay)
                if kept is None:
                    raise RequestError(f"the replay {request.replay!r} was forgotten") from error
                record = kept
            if not messages:
                break
            await asyncio.sleep(0)
        answer = _answer(request.replay, record)
        if problem is None:
            return answer
        return msgspec.structs.replace(answer, problem=str(problem), kind=type(problem).__name__)

    def _step(
        self,
        requester: Requester,
        request: PublishReplayed,
        record: _Record,
        part: tuple[ReplayedMessage, ...],
        done: int,
    ) -> tuple[Step, _Record, asyncio.Future[None]]:
        """Add as much of *part* to the turn as there is room and time for, as one unit.

        Raises: GatewayError when that is nothing at all; then nothing was done.
        """
        core = self._core
        writer = core.writer
        writer.check_writable()
        first, first_sequence = len(writer.turn.operations), writer.next_sequence
        undo: list[Callable[[], None]] = []
        step = self._publishing.fill(requester, part, undo)
        if part and not step.count:
            assert step.problem is not None
            raise step.problem
        is_end = done + step.count == len(request.messages)
        position = part[step.count - 1].position if part else record.position
        if is_end and request.through:
            position = request.through
        changed = msgspec.structs.replace(
            record,
            position=position,
            count=record.count + step.count,
            is_complete=is_end and request.is_last,
        )
        self._keep(request.replay, changed, undo)
        return step, changed, self._publishing.durable(first, first_sequence, step.count, undo)

    # --- the record ------------------------------------------------------------------------------

    def _lock(self, replay: str) -> asyncio.Lock:
        locks = self._locks
        for name in [name for name, lock in locks.items() if not lock.locked()]:
            if name != replay:
                del locks[name]
        return locks.setdefault(replay, asyncio.Lock())

    async def _durable_record(self, replay: str) -> _Record | None:
        """The durable record: a step that is not durable yet may still be taken back."""
        if replay in self._unsure:
            await durable(self._core.flow)
            self._unsure.discard(replay)
        return self._record(replay)

    def _record(self, replay: str) -> _Record | None:
        kept = self._core.retained.get(_PREFIX + replay)
        return None if kept is None else _decode(kept.body)

    def _keep(self, replay: str, record: _Record, undo: list[Callable[[], None]]) -> None:
        """Add *record* to the filling turn. Raises: FlowControlError: too much is retained."""
        core, destination = self._core, _PREFIX + replay
        check_own(OwnWrite.REPLAY, destination)
        message = Message(
            destination,
            _encode(record),
            received_at=core.writer.now(),
            qos=0,
            retain=True,
            content_type="application/json",
            payload_format=1,
        )
        core.retained.check_room(message)
        if core.deliveries.active:
            core.deliveries.before_publish(destination)
        operation, take_back = core.retained.replace(message)
        if operation is not None:
            core.writer.turn.operations.append(operation)
        if take_back is not None:
            undo.append(take_back)


def _answer(replay: str, record: _Record) -> Replay:
    return Replay(replay, record.plan, record.position, record.count, record.is_complete)
