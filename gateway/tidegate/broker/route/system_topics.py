"""``$SYS`` topics: what the gateway tells about itself to whoever subscribes to them.

Names and meaning are those that Mosquitto documents (mosquitto(8), "Broker status"), as far as the
gateway knows the value; topics whose value it does not know do not exist. The values are retained
in memory, so that a new subscriber has all of them at once, and only what has changed is published.

Source: MQTT 3.1.1 section 4.7.2 (topics that begin with ``$``).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from tidegate.spi import Message, names

if TYPE_CHECKING:
    from tidegate.broker.core import BrokerCore

#: Topics at and below this are published to by the gateway only.
_FIRST_LEVEL: Final = names.topic("$SYS")

_PREFIX: Final = f"{_FIRST_LEVEL}.broker."

#: Name and minutes of the moving averages.
_AVERAGES: Final = (("1min", 1), ("5min", 5), ("15min", 15))

_US: Final = 1_000_000


def is_system(destination: str) -> bool:
    """Tell whether the canonical *destination* is one that clients must not publish to."""
    return destination.startswith(_FIRST_LEVEL) and (
        destination == _FIRST_LEVEL or destination[len(_FIRST_LEVEL)] == "."
    )


class SystemTopics:
    """Publishes the state of *core* every *interval* seconds."""

    def __init__(self, core: BrokerCore, interval: float) -> None:
        self._core = core
        self._interval = interval
        self._started_at = core.elapsed()
        self._first_sequence = core.next_sequence
        self._published: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        self._loads: dict[str, list[float]] = {}
        self._last_us = self._started_at

    async def run(self) -> None:
        """Publish now and every interval until cancelled."""
        while True:
            self.publish(self._core.elapsed())
            await asyncio.sleep(self._interval)

    def publish(self, elapsed: int) -> None:
        """Publish what has changed; *elapsed*: :meth:`BrokerCore.elapsed`."""
        core = self._core
        for name, value in self._values(elapsed).items():
            if self._published.get(name) == value:
                continue
            self._published[name] = value
            destination = _PREFIX + name
            message = Message(
                destination,
                value.encode(),
                received_at=core.now(),
                qos=0,
                retain=True,
                content_type="text/plain",
                payload_format=1,
            )
            if core.retained_deliveries.active:
                core.retained_deliveries.before_publish(destination)
            core.retained.set_volatile(message)
            route = core.route_once(destination).without_storing()
            if route.is_picky:
                route = route.narrowed(message, "")
            if route.direct:
                core.own_sequences += 1
                core.add_message(message, route)
                core.schedule()

    def _values(self, elapsed: int) -> dict[str, str]:
        core = self._core
        connected = len(core.connections)
        disconnected = core.sessions.count_disconnected()
        retained = len(core.retained)
        statistics = core.store.statistics()
        totals = {
            "received": core.next_sequence - self._first_sequence - core.own_sequences,
            "sent": core.sent,
            "dropped": core.dropped,
        }
        values: dict[str, int | str] = {
            "version": f"tidegate version {core.version}",
            "uptime": f"{(elapsed - self._started_at) // _US} seconds",
            "clients.connected": connected,
            "clients.disconnected": disconnected,
            "clients.total": connected + disconnected,
            "clients.maximum": core.clients_maximum,
            "clients.expired": core.sessions.expired,
            "retained messages.count": retained,
            "store.messages.count": statistics.pending_messages + retained,
            "store.writable": int(statistics.writable),
            "publish.messages.duplicates": core.duplicates.discarded,
            "subscriptions.count": _subscriptions(core),
            "shared_subscriptions.count": sum(len(i.consumers) for i in core.shared.values()),
        }
        for what, total in totals.items():
            values[f"publish.messages.{what}"] = total
        return {
            **{name: str(value) for name, value in values.items()},
            **self._averages(totals, elapsed),
        }

    def _averages(self, totals: dict[str, int], elapsed: int) -> dict[str, str]:
        """Messages per minute, averaged exponentially over some minutes, as Mosquitto does."""
        elapsed_s = (elapsed - self._last_us) / _US
        if elapsed_s <= 0:
            return {}
        self._last_us = elapsed
        found: dict[str, str] = {}
        for what, total in totals.items():
            per_minute = (total - self._totals.get(what, 0)) * 60 / elapsed_s
            loads = self._loads.setdefault(what, [0.0] * len(_AVERAGES))
            for index, (name, minutes) in enumerate(_AVERAGES):
                weight = math.exp(-elapsed_s / 60 / minutes)
                loads[index] = per_minute + weight * (loads[index] - per_minute)
                found[f"load.publish.{what}.{name}"] = f"{loads[index]:.2f}"
        self._totals = totals
        return found


def _subscriptions(core: BrokerCore) -> int:
    """Subscriptions of connected clients, and durable ones whose client is away."""
    served = sum(connection.subscription_count for connection in core.connections)
    return served + sum(not item.consumers for item in core.durable.values())
