"""One rule in the gateway: a client of the broker that publishes what comes in (:mod:`_in_lane`) or
consumes what goes out (:mod:`_out_lane`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Final

from tidegate.spi import (
    Broker,
    BrokerConnection,
    ClientPeer,
    ClientRules,
    ConnectRequest,
    GatewayError,
    Principal,
)
from tidegate.spi.events import Event
from tidegate.spi.operate import BridgeRow
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._options import BridgeOptions, Direction, RuleOptions
from tidegate_bridge._parking import Suspect
from tidegate_bridge._repeats import Repeats

_log = logging.getLogger("tidegate.bridge")

PROTOCOL: Final = "bridge"
_RULES: Final = ClientRules()
#: How long either side may take to confirm what was sent when a rule ends.
_CONFIRM_S: Final = 5.0
#: Messages handled before yielding to others.
AT_ONCE: Final = 32
_REMEDY: Final = "see the gateway's log, and what its access control says of the bridge's principal"


class Lane(ABC):
    """One rule. Args: number: its number in the process; tell: sends to it. On the event loop.

    Attributes:
        server: what the other broker calls itself; "" unless messages flow, that is, it is
            connected there and subscribed, or admitted, here.
        problem, remedy: of the last failed attempt, at problem_at (microseconds since the Unix
            epoch); moved, moved_bytes, looped: since the start.
        last_at: the last confirmation, microseconds since the Unix epoch; 0: none.
        suspect: an outgoing message that is refused; parked: put aside since the start;
            failures: attempts that ended.
        paused: why it is paused; "" if it is not.
    """

    def __init__(
        self,
        number: int,
        options: BridgeOptions,
        rule: RuleOptions,
        broker: Broker,
        tell: Callable[[protocol.FromGateway], None],
    ) -> None:
        self.rule = rule
        self.number = number
        self.epoch = 0
        self.server: str = ""
        self.problem: str = ""
        self.remedy: str = ""
        self.problem_at = 0
        self.moved = 0
        self.moved_bytes = 0
        self.looped = 0
        self.last_at = 0
        self.suspect = Suspect(options.park_after)
        self.parked = 0
        self.failures = 0
        self.paused: str = ""
        self._options = options
        self._broker = broker
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False  # send nothing more
        self._settled = asyncio.Event()
        self._repeats = Repeats()
        self._there: str = ""  # what the other broker calls itself, once connected

    @property
    @abstractmethod
    def on_the_way(self) -> tuple[int, int]:
        """Messages taken from the source and not yet confirmed at the target, and body bytes."""

    def row(self) -> BridgeRow:
        """Its state, for operators."""
        rule, (count, size) = self.rule, self.on_the_way
        is_in = rule.direction is Direction.IN
        return BridgeRow(
            bridge=self._options.name,
            rule=rule.name,
            direction=rule.direction.value,
            remote=self._options.remote,
            source=rule.remote if is_in else rule.local,
            target=rule.local if is_in else rule.remote,
            server=self.server,
            moved=self.moved,
            moved_bytes=self.moved_bytes,
            on_the_way=count,
            on_the_way_bytes=size,
            looped=self.looped,
            last_at=self.last_at,
            problem=self.problem,
            remedy=self.remedy,
            refused=self.suspect.number,
            refused_attempts=self.suspect.attempts,
            parked=self.parked,
            failures=self.failures,
            paused=self.paused,
            problem_at=self.problem_at,
        )

    def heard(self, told: protocol.FromProcess) -> None:
        """Handle a frame from the process about this rule."""
        if isinstance(told, protocol.Ready):
            self.epoch, self._there, self.server = told.epoch, told.server or "?", ""
            self._ready()
        elif told.epoch == self.epoch or isinstance(told, protocol.Lost):
            self._heard(told)

    def _heard(self, told: protocol.FromProcess) -> None:
        if isinstance(told, protocol.Lost):
            self.lost(told.problem, told.remedy, told.again_s)

    @abstractmethod
    def _ready(self) -> None:
        """The other broker is connected."""

    def _flows(self) -> None:
        """From now on, what is published at the source reaches the target. Idempotent."""
        if not self._there or self.server:
            return
        self.server = self._there
        text = "bridge=%s rule=%s server=%r connected"
        values = (self._options.name, self.rule.name, self.server)
        if self._repeats.is_connected():
            self._broker.tell(Event.BRIDGE_CONNECTED, _log, text, *values)
        else:
            _log.debug(text, *values)

    def lost(self, problem: str, remedy: str, again_s: float) -> None:
        """The other broker is not connected, or no longer."""
        if self._is_over:  # nobody waits for it any more
            self._there = self.server = ""
            self._settled.set()
            return
        self._there = self.server = ""
        self.problem, self.remedy = problem, remedy
        self.problem_at = time.time_ns() // 1000
        self.failures += 1
        self._settled.set()
        text = "bridge=%s rule=%s problem=%r remedy=%r again_s=%.1f count=%d"
        values = (self._options.name, self.rule.name, problem, remedy, again_s)
        count = self._repeats.lost(problem)
        if count:
            self._broker.tell(Event.BRIDGE_LOST, _log, text, *values, count)
        else:
            _log.debug(text, *values, 1)

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether nothing sent awaits confirmation."""

    async def end(self) -> None:
        """Stop sending, wait for what was sent if anyone can confirm it, and release everything:
        what is not confirmed stays at its source."""
        self._is_over = True
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _CONFIRM_S
        while self._there and not self.is_settled and loop.time() < ends_at:
            self._settled.clear()
            moment = loop.call_at(ends_at, self._settled.set)
            await self._settled.wait()
            moment.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._there = self.server = ""

    async def pause(self, why: str) -> None:
        """End, until :meth:`go_on`."""
        self.paused = why
        await self.end()
        self._broker.tell(
            Event.BRIDGE_PAUSED,
            _log,
            "bridge=%s rule=%s paused: %s",
            self._options.name,
            self.rule.name,
            why,
        )

    def go_on(self, number: int) -> None:
        """Resume. Args: number: a new one for the process, so that stale frames are ignored."""
        self.paused, self.number, self.epoch = "", number, 0
        self._is_over = False

    def _spawn(self, name: str, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(
            work, name=f"bridge {self._options.name} {self.rule.name} {name}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, peer: ClientPeer) -> BrokerConnection:
        """Raises: GatewayError."""
        options = self._options
        result = await self._broker.connect(
            ConnectRequest(
                protocol=PROTOCOL,
                version="1",
                client_id=f"{options.name}/{self.rule.name}",
                peer="127.0.0.1:0",
                listener=f"bridge://{options.name}",
                username=options.principal,
                tls_principal=Principal(options.principal),
                rules=_RULES,
                heeds_drain=True,
            ),
            peer,
        )
        result.connection.resume()
        return result.connection

    def _fail(self, error: GatewayError) -> None:
        """End this attempt because of an error of the gateway."""
        self._tell(protocol.Stop(self.number, self.epoch, f"the gateway says: {error}", _REMEDY))

    def _has_moved(self, count: int, size: int) -> None:
        self.moved += count
        self.moved_bytes += size
        self.last_at = time.time_ns() // 1000
