"""A bridge: keeps its process alive, and its lanes between that and the broker."""

from __future__ import annotations

import asyncio
import logging

from tidegate.spi import Broker
from tidegate.spi.machine.children import supervise
from tidegate.spi.operate import BridgeRow
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._lane import Lane, lane_of
from tidegate_bridge._options import BridgeOptions, Checked, MqttVersion
from tidegate_bridge._process import BridgeProcess

_log = logging.getLogger("tidegate.bridge")


class Bridge:
    """A :class:`tidegate.spi.Resident`."""

    def __init__(self, options: BridgeOptions, checked: Checked) -> None:
        self.name = options.name
        self.lanes: list[Lane] = []
        self._options = options
        self._checked = checked
        self._process: BridgeProcess | None = None
        self._supervising: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"bridge {self.name}"

    @property
    def pid(self) -> int:
        """Of its process; 0: none runs now."""
        return 0 if self._process is None else self._process.pid

    def bridge_rows(self) -> list[BridgeRow]:
        """See Bridging."""
        return [lane.row() for lane in self.lanes]

    async def move_in(self, broker: Broker) -> None:
        """See Resident."""
        self.lanes = [
            lane_of(number, self._options, broker, self._tell, self._drain)
            for number in range(len(self._options.rules))
        ]
        start = self._start(broker.store_id)
        self._supervising = asyncio.create_task(
            supervise(lambda: BridgeProcess.start(start, self._heard), self._runs, self._ended),
            name=f"bridge {self.name}",
        )

    async def move_out(self) -> None:
        """See Resident."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
            self._supervising = None
        for lane in self.lanes:
            await lane.end()

    def _runs(self, process: BridgeProcess | None) -> None:
        self._process = process

    def _ended(self, why: str, again_s: float) -> None:
        for lane in self.lanes:
            lane.lost(
                f"the bridge's process {why}", "it is started again; the log says why", again_s
            )

    def _heard(self, told: protocol.FromProcess) -> None:
        self.lanes[told.rule].heard(told)

    def _tell(self, told: protocol.FromGateway) -> None:
        if self._process is not None:
            self._process.tell(told)

    async def _drain(self) -> None:
        if self._process is not None:
            await self._process.drain()

    def _start(self, store: str) -> protocol.Start:
        options, checked = self._options, self._checked
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
            rules=tuple(
                protocol.Rule(
                    name=rule.name,
                    direction=rule.direction,
                    remote=rule.remote,
                    local=rule.local,
                    selector=rule.selector,
                    durable=rule.durable,
                    jms_type=rule.jms_type,
                    headers=rule.headers,
                    is_echoed=is_echoed,
                )
                for rule, is_echoed in zip(options.rules, checked.is_echoed, strict=True)
            ),
        )
