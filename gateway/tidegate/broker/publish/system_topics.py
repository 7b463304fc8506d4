"""``$SYS`` topics: what the gateway tells subscribers about itself.

Names and meanings are those that Mosquitto documents (mosquitto(8), "Broker status"), as far as the
gateway knows the value; topics whose value it does not know do not exist. The values are retained
in memory, so that a new subscriber gets all of them at once, and only changes are published.

Source: MQTT 3.1.1 section 4.7.2 (topics that begin with ``$``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.broker.destinations import Destinations
from tidegate.broker.publish.access import OwnWrite, check_own
from tidegate.broker.publish.retained_delivery import RetainedDeliveries
from tidegate.broker.traffic import Traffic
from tidegate.broker.turn.flow import Flow
from tidegate.spi import Message, names

#: Only the gateway publishes to topics at and below this.
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


@dataclass(eq=False, repr=False)
class SystemTopics:
    """Publishes the state of the gateway every *interval* seconds.

    Args:
        clients: what is known about clients and what they did, by topic.
        traffic: how much they sent and got.
        opened: totals since the start whose averages are published, by topic below ``load``.
    """

    _flow: Flow
    _destinations: Destinations
    _deliveries: RetainedDeliveries
    _interval: float
    _clients: Callable[[], Mapping[str, int | str]]
    _traffic: Traffic
    _opened: Callable[[], Mapping[str, int]]

    def __post_init__(self) -> None:
        self._writer = self._flow.writer
        self._published: dict[str, str] = {}
        self._totals: Mapping[str, int] = {}
        self._loads: dict[str, list[float]] = {}
        self._last_us = self._traffic.started_at

    async def run(self) -> None:
        """Publish now and every interval until cancelled."""
        while True:
            self.publish(self._writer.elapsed())
            await asyncio.sleep(self._interval)

    def publish(self, elapsed: int) -> None:
        """Publish what has changed; *elapsed*: :meth:`BrokerCore.elapsed`."""
        retained, deliveries = self._deliveries.retained, self._deliveries
        for name, value in self._values(elapsed).items():
            if self._published.get(name) == value:
                continue
            self._published[name] = value
            destination = _PREFIX + name
            check_own(OwnWrite.SYSTEM_TOPIC, destination)
            message = Message(
                destination,
                value.encode(),
                received_at=self._writer.now(),
                qos=0,
                retain=True,
                content_type="text/plain",
                payload_format=1,
            )
            if deliveries.active:
                deliveries.before_publish(destination)
            retained.set_volatile(message)
            route = self._destinations.route_once(destination).without_storing()
            if route.is_picky:
                route = route.narrowed(message, "")
            if route.direct:
                self._writer.own_sequences += 1
                self._writer.add_message(message, route)
                self._writer.schedule()

    def _values(self, elapsed: int) -> dict[str, str]:
        retained = len(self._deliveries.retained)
        statistics = self._flow.store.statistics()
        counted = self._traffic.totals()
        totals = {
            "received": counted["published"],
            "sent": counted["delivered"],
            "dropped": counted["dropped"],
        }
        shared = self._destinations.shared.values()
        values: dict[str, int | str] = {
            **self._clients(),
            "uptime": f"{(elapsed - self._traffic.started_at) // _US} seconds",
            "retained messages.count": retained,
            "store.messages.count": statistics.pending_messages + retained,
            "messages.stored": statistics.pending_messages
            + retained,  # as Mosquitto called it before
            "store.writable": int(statistics.writable),
            "shared_subscriptions.count": sum(len(item.consumers) for item in shared),
            "cursors.paging": self._destinations.feeds.paging,
            "cursors.turns": self._destinations.feeds.turns,
            "cursors.paged.messages": self._destinations.feeds.paged_count,
            "cursors.paged.bytes": self._destinations.feeds.paged_bytes,
        }
        for what, total in totals.items():
            values[f"publish.messages.{what}"] = total
        loads = {**{f"publish.{what}": total for what, total in totals.items()}, **self._opened()}
        return {
            # (An event that never happened has no topic.)
            **{key: str(value) for key, value in values.items() if value or key[:7] != "events."},
            **self._averages(loads, elapsed),
        }

    def _averages(self, totals: Mapping[str, int], elapsed: int) -> dict[str, str]:
        """How much of each per minute, averaged exponentially over some minutes, as in Mosquitto."""
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
                found[f"load.{what}.{name}"] = f"{loads[index]:.2f}"
        self._totals = totals
        return found
