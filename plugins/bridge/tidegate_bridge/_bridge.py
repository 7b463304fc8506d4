"""A bridge: keeps its process alive, and runs the lanes between it and the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import fields

from tidegate.spi import Broker, DrainStage, RequestError, names
from tidegate.spi.machine.children import supervise
from tidegate.spi.operate import BridgeRow
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._handing import HandingLane
from tidegate_bridge._in_lane import InLane
from tidegate_bridge._lane import Lane
from tidegate_bridge._options import BridgeOptions, Checked, Direction, MqttVersion, RuleOptions
from tidegate_bridge._out_lane import OutLane
from tidegate_bridge._process import BridgeProcess

_log = logging.getLogger("tidegate.bridge")


class Bridge:
    """A :class:`tidegate.spi.Resident` that can also take queues.

    Attributes: lanes: by number; numbers are never reused.
    """

    def __init__(self, options: BridgeOptions, checked: Checked) -> None:
        self.name = options.name
        self.lanes: dict[int, Lane] = {}
        self._options = options
        self._checked = checked
        self._process: BridgeProcess | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._broker: Broker | None = None
        self._numbers = 0
        self._stage = DrainStage.OPEN
        self._paused: dict[str, Lane] = {}
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"bridge {self.name}"

    @property
    def pid(self) -> int:
        """The pid of its process; 0 for none."""
        return 0 if self._process is None else self._process.pid

    def bridge_rows(self) -> list[BridgeRow]:
        """See Bridging."""
        order = {rule.name: number for number, rule in enumerate(self._options.rules)}
        lanes = (*self.lanes.values(), *self._paused.values())
        return [
            lane.row()
            for lane in sorted(lanes, key=lambda lane: order.get(lane.rule.name, len(order)))
        ]

    async def move_in(self, broker: Broker) -> None:
        """See Resident."""
        async with self._changing:
            self._broker = broker
            await self._let_run(broker)

    async def heed_drain(self, stage: DrainStage) -> None:
        """See HeedsDrain."""
        async with self._changing:
            self._stage = stage
            if self._broker is not None:
                await self._let_run(self._broker)

    def _pause_of(self, rule: RuleOptions) -> str:
        """Why *rule* may not run now; "" if it may."""
        if self._stage is DrainStage.OPEN:
            return ""
        if rule.direction is Direction.IN:
            return "the gateway is drained, and nothing new comes into it; `tidegate undrain` lets it go on"
        if self._stage is DrainStage.HANDING_OVER and names.is_queue(rule.local):
            return "the hand-over takes what waits in queues, so that it stays in order"
        return ""

    async def _let_run(self, broker: Broker) -> None:
        """Start the rules that may run, and pause the others."""
        running = {
            lane.rule.name: lane
            for lane in self.lanes.values()
            if not isinstance(lane, HandingLane)
        }
        pauses = {rule.name: self._pause_of(rule) for rule in self._options.rules}
        pausing = {name: lane for name, lane in running.items() if pauses[name]}
        await self._end_all(
            pausing.values(), [lane.pause(pauses[name]) for name, lane in pausing.items()]
        )
        self._paused |= pausing
        for rule in self._options.rules:
            why = pauses[rule.name]
            lane = self._paused.get(rule.name)
            if why:
                lane = lane or self._made(rule, broker)
                lane.paused = why
                self._paused[rule.name] = lane
            elif lane is not None:
                del self._paused[rule.name]
                lane.go_on(self._next_number())
                self._add(lane)
            elif rule.name not in running:
                self._add(self._made(rule, broker))

    def _made(self, rule: RuleOptions, broker: Broker) -> Lane:
        number = self._next_number()
        if rule.direction is Direction.IN:
            return InLane(number, self._options, rule, broker, self._tell)
        return OutLane(number, self._options, rule, broker, self._tell, self._drain)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _add(self, lane: Lane) -> None:
        """Start a lane, and with the first one the process."""
        self.lanes[lane.number] = lane
        self._tell(protocol.Begin(lane.number, self._said(lane.rule)))
        self._keep_process()

    def _keep_process(self) -> None:
        if self._supervising is None:
            self._supervising = asyncio.create_task(
                supervise(
                    lambda: BridgeProcess.start(self._start, self._heard), self._runs, self._ended
                ),
                name=f"bridge {self.name}",
            )

    def _remove(self, lane: Lane) -> None:
        """Forget a lane that has ended."""
        if self.lanes.pop(lane.number, None) is not None:
            self._tell(protocol.End(lane.number))

    @property
    def remote(self) -> str:
        """See TakesQueues."""
        return self._options.remote

    @property
    def taking_problem(self) -> str:
        """See TakesQueues."""
        if self._checked.is_mqtt:
            return (
                f"bridge {self.name!r} speaks MQTT, by which no queue can be handed over: a broker may confirm what it keeps "
                "for nobody; name one with stomp:// or stomps://"
            )
        return f"bridge {self.name!r} has not begun or has ended" if self._broker is None else ""

    def begin_taking(self, changed: Callable[[], None]) -> HandingLane:
        """See TakesQueues."""
        if problem := self.taking_problem:
            raise RequestError(problem)
        assert self._broker is not None  # that would be a problem
        lane = HandingLane(
            self._next_number(),
            self._options,
            self._broker,
            self._tell,
            self._drain,
            changed,
            self._remove,
        )
        self._add(lane)
        return lane

    async def move_out(self) -> None:
        """See Resident."""
        async with self._changing:
            await self._move_out()

    async def _move_out(self) -> None:
        self._broker = None  # it takes no queues from here on
        await self._fail_taking(
            f"bridge {self.name!r} has ended",
            "put it into the configuration again, or name another bridge, and give `drain --hand-over` again: it goes on with what is "
            "here; `undrain` lets clients in",
        )
        await self._end(tuple(self.lanes.values()))
        self._paused.clear()
        await self._end_process()

    async def _fail_taking(self, why: str, remedy: str) -> None:
        """End the lane that takes queues."""
        taking = [lane for lane in self.lanes.values() if isinstance(lane, HandingLane)]
        await asyncio.gather(*[lane.fail(why, remedy) for lane in taking])

    async def _end(self, lanes: Collection[Lane]) -> None:
        """End all at the same time: each may wait for what it sent."""
        await self._end_all(lanes, [lane.end() for lane in lanes])

    async def _end_all(
        self, lanes: Collection[Lane], ending: Collection[Coroutine[object, object, None]]
    ) -> None:
        ended = await asyncio.gather(*ending, return_exceptions=True)
        for lane, came in zip(lanes, ended, strict=True):
            if isinstance(came, BaseException):
                _log.error("bridge=%s rule=%s", self.name, lane.rule.name, exc_info=came)
            self._remove(lane)

    async def _end_process(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
            self._supervising = None

    # --- Exchangeable ----------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """See Exchangeable."""
        return repr(self)

    def differences(self, other: object) -> list[str]:
        """See Exchangeable."""
        assert isinstance(other, Bridge)
        found = self._other_options(other)
        before, after = self._rules(), other._rules()
        for name in before | after:
            if name not in after:
                found.append(f"rule {name} removed")
            elif name not in before:
                found.append(f"rule {name} added")
            elif before[name] != after[name]:
                found.append(f"rule {name} changed")
        return found

    def _other_options(self, other: Bridge) -> list[str]:
        """Changed options that affect all rules."""
        found = [
            field.name
            for field in fields(BridgeOptions)
            if field.name != "rules"
            and getattr(self._options, field.name) != getattr(other._options, field.name)
        ]
        if self._checked.password != other._checked.password and "password_file" not in found:
            found.append("password_file")
        return found

    def _rules(self) -> dict[str, tuple[RuleOptions, bool]]:
        """Rules by name, and whether each is echoed, which depends on other rules."""
        pairs = zip(self._options.rules, self._checked.is_echoed, strict=True)
        return {rule.name: (rule, is_echoed) for rule, is_echoed in pairs}

    async def become(self, other: object) -> None:
        """See Exchangeable. A change of other options restarts all rules, in a new process."""
        assert isinstance(other, Bridge)
        async with self._changing:
            await self._become(other)

    async def _become(self, other: Bridge) -> None:
        before, after, broker = self._rules(), other._rules(), self._broker
        begins_anew = bool(self._other_options(other))
        kept = {name for name in before if not begins_anew and before[name] == after.get(name)}
        lanes = tuple(self.lanes.values())
        gone = before.keys() - kept
        await self._end([lane for lane in lanes if lane.rule.name in gone])
        self._paused = {name: lane for name, lane in self._paused.items() if name not in gone}
        sends_otherwise = self._sent_by(self._options) != self._sent_by(other._options)
        self._options, self._checked = other._options, other._checked
        if begins_anew or sends_otherwise:
            await self._fail_taking(
                f"bridge {self.name!r} was changed by a reload",
                f"give `drain --hand-over {self.name}` again: it goes on with what is here, as the bridge is now",
            )
        if begins_anew:
            await self._end_process()
        if broker is None:
            return
        await self._let_run(broker)
        if self.lanes:
            self._keep_process()

    @staticmethod
    def _sent_by(options: BridgeOptions) -> list[RuleOptions]:
        """The rules that name the queues handed over."""
        return [rule for rule in options.rules if rule.direction is Direction.OUT]

    def _runs(self, process: BridgeProcess | None) -> None:
        self._process = process

    def _ended(self, why: str, again_s: float) -> None:
        for lane in tuple(self.lanes.values()):
            lane.lost(
                f"the bridge's process {why}", "it is started again; the log says why", again_s
            )

    def _heard(self, told: protocol.FromProcess) -> None:
        if told.rule in self.lanes:
            self.lanes[told.rule].heard(told)

    def _tell(self, told: protocol.FromGateway) -> None:
        if self._process is not None:
            self._process.tell(told)

    async def _drain(self) -> None:
        if self._process is not None:
            await self._process.drain()

    def _said(self, rule: RuleOptions) -> protocol.Rule:
        rules = self._options.rules
        return protocol.Rule(
            name=rule.name,
            direction=rule.direction,
            remote=rule.remote,
            local=rule.local,
            selector=rule.selector,
            durable=rule.durable,
            jms_type=rule.jms_type,
            headers=rule.headers,
            is_echoed=rule in rules and self._checked.is_echoed[rules.index(rule)],
        )

    def _start(self) -> protocol.Start:
        options, checked = self._options, self._checked
        store = "" if self._broker is None else self._broker.store_id
        return protocol.Start(
            name=options.name,
            here=f"{store}/{options.name}",
            store=store,
            scheme=checked.scheme,
            host=checked.host,
            port=checked.port,
            user=options.user,
            password=checked.password,
            ca=str(options.tls_ca or ""),
            certificate=str(options.tls_certificate or ""),
            key=str(options.tls_key or ""),
            virtual_host=options.virtual_host,
            client_id=options.client_id or f"tidegate-{options.name}",
            is_mqtt_5=options.mqtt_version is MqttVersion.V5,
            window=options.window,
            window_bytes=options.window_bytes,
            message_limit=options.message_limit,
            connect_timeout=options.connect_timeout,
            reconnect_min=options.reconnect_min,
            reconnect_max=options.reconnect_max,
            hops_max=options.hops_max,
            rules={number: self._said(lane.rule) for number, lane in self.lanes.items()},
        )
