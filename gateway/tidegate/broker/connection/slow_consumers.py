"""Consumers that acknowledge nothing for long, or too little: found, reported, and by policy cut short or
disconnected.

By age (``slow_consumer_age``): how long the oldest unacknowledged message of a consumer has been in
flight, by a monotonic clock. Where a policy says so all consumers are checked now and then, so a
slow one is found late by that much at most, and a quick one is not noticed at all.

By rate (``slow_consumer_rate``): how much was settled from one look to the next, if more waited for it
all the time: at both looks it could take no more while its list had more, and what is first in flight
at the second look had come before the first. Comparing only the ends would find a quick consumer that
has a pile before it at each look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, Protocol, final

from tidegate.broker.lists.pending_list import Consumer, PendingList
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.walks import STEP_LISTS, Walk
from tidegate.config import DestinationPolicy
from tidegate.spi import FlowControlError, GatewayError, SlowConsumer
from tidegate.spi.events import Event, Tell, log_only

_log = logging.getLogger("tidegate.broker.slow")

#: All consumers are checked once per this many calls.
LOOK_EVERY: Final = 10

#: After a longer gap between looks, in microseconds, counting starts over: the gateway was held up.
_PERIOD_MAX: Final = 2 * LOOK_EVERY * 1_000_000

AGE: Final = "slow_consumer_age"
RATE: Final = "slow_consumer_rate"
CUT: Final = "cut_prefetch"
DISCONNECT: Final = "disconnect"


class Connection(Protocol):
    """A connected client."""

    client_id: str
    principal: str
    protocol: str
    address: str
    consumers: dict[str, Consumer]

    def end(self, error: GatewayError, /) -> None: ...


@dataclass(slots=True)
class _Seen:
    """The first message a consumer had in flight, since when it was seen there, and its own prefetch.

    Attributes:
        told: what was announced when it was found slow; None when it is not.
        at: when it was last checked; settled: how many it had settled by then;
            next_sequence: of the gateway then; waited: more waited for it then.
    """

    sequence: int
    since: int
    prefetch_count: int = 0
    told: SlowConsumer | None = None
    at: int = 0
    settled: int = 0
    next_sequence: int = 0
    waited: bool = False

    @property
    def found_by(self) -> str:
        """The option by which it is slow; "" when it is not."""
        return "" if self.told is None else self.told.found_by


def _unheard(_: SlowConsumer) -> None:
    """No plugin wants to know."""


@final
class SlowConsumers:
    """Call :meth:`look` every second.

    Args: connections: all of them; policy: of a destination; is_on: some policy wants this.

    Attributes:
        announce: told of each when it is found slow and when it is over; must not raise.
        slow: consumers that are slow now; found: how many were, since the start.
    """

    def __init__(
        self,
        flow: Flow,
        connections: Callable[[], Iterable[Connection]],
        policy: Callable[[str], DestinationPolicy],
        *,
        is_on: bool,
    ) -> None:
        self._flow = flow
        self._connections = connections
        self._policy = policy
        self.is_on = is_on
        self._seen: dict[Consumer, _Seen] = {}
        self._before = self._seen  # of the last look: those not checked in this one
        self._calls = 0
        self.announce: Callable[[SlowConsumer], None] = _unheard
        self.tell: Tell = log_only
        self.slow = self.found = 0

    def look(self, elapsed: int) -> None:
        """Check them now and then. Args: elapsed: see :meth:`TurnWriter.elapsed`."""
        if self.is_on and not self._calls % LOOK_EVERY:
            self._flow.walks.begin(self._look(elapsed))
        self._calls += 1

    def begin_anew(self, pending_list: PendingList) -> None:
        """An operator has paused or resumed the list: count what its consumers settle from here."""
        for consumer in pending_list.all_consumers():
            seen = self._seen.get(consumer) or self._before.get(consumer)
            if seen is not None:
                seen.waited = False

    def snapshot(self) -> Mapping[str, int]:
        """By metric."""
        return {"consumers.slow": self.slow, "consumers.slowed": self.found}

    def _look(self, elapsed: int) -> Walk:
        before = self._before = self._seen
        self._seen = {}
        looked = 0
        for connection in list(self._connections()):
            for consumer in list(connection.consumers.values()):
                seen = before.pop(consumer, None)
                self._look_at(connection, consumer, seen, elapsed)
                looked += 1
                if not looked % STEP_LISTS:
                    yield
        for seen in before.values():  # those that are gone
            if seen.told is not None:
                self._is_told_over(seen.told, 0)

    def _look_at(
        self, connection: Connection, consumer: Consumer, seen: _Seen | None, elapsed: int
    ) -> None:
        first = next(iter(consumer.in_flight), 0)
        if not first:
            if seen is not None and seen.told is not None:
                self._is_over(connection, consumer, seen, seen.told)
            return
        if seen is None:
            seen = _Seen(first, elapsed)
        elif seen.sequence != first:
            if seen.told is not None and seen.found_by == AGE:
                self._is_over(connection, consumer, seen, seen.told)
            seen.sequence, seen.since = first, elapsed
        self._seen[consumer] = seen
        if seen.prefetch_count and consumer.prefetch_count != 1:  # it has resubscribed
            self._cut(consumer, seen)
        policy = self._policy(consumer.destination)
        age = policy.slow_consumer_age
        if age and not seen.found_by and elapsed - seen.since >= age * 1_000_000:
            text = f"it has acknowledged nothing for {age:g}s"
            self._is_slow(connection, consumer, seen, AGE, text)
        elif policy.slow_consumer_rate:
            self._look_at_rate(connection, consumer, seen, policy.slow_consumer_rate)

    def _look_at_rate(
        self, connection: Connection, consumer: Consumer, seen: _Seen, rate: float
    ) -> None:
        writer = self._flow.writer
        now = writer.elapsed()  # of this step, not of the first
        settled = consumer.handed - len(consumer.in_flight)
        waits = _waits(consumer)
        period, count = now - seen.at, settled - seen.settled
        if 0 < period <= _PERIOD_MAX:
            is_enough = count >= rate * period / 1_000_000
            had_work = seen.waited and waits and seen.sequence < seen.next_sequence
            if seen.told is not None and seen.found_by == RATE and is_enough:
                self._is_over(connection, consumer, seen, seen.told)
            elif seen.told is None and had_work and not is_enough:
                text = (
                    f"it has acknowledged {count} in {period / 1_000_000:g}s of at least {rate:g}/s"
                )
                self._is_slow(connection, consumer, seen, RATE, text)
        seen.at, seen.settled, seen.waited = now, settled, waits
        seen.next_sequence = writer.next_sequence

    def _is_slow(
        self, connection: Connection, consumer: Consumer, seen: _Seen, found_by: str, text: str
    ) -> None:
        self.slow += 1
        self.found += 1
        act = self._policy(consumer.destination).slow_consumer_act
        self.tell(
            Event.CONSUMER_SLOW,
            _log,
            "consumer=%r destination=%s client=%r principal=%r peer=%s in_flight=%d act=%s: %s (%s)",
            consumer.key,
            consumer.destination,
            connection.client_id,
            connection.principal,
            connection.address,
            len(consumer.in_flight),
            act,
            text,
            found_by,
        )
        seen.told = SlowConsumer(
            destination=consumer.destination,
            subscription=consumer.key,
            client_id=connection.client_id,
            principal=connection.principal,
            act=act,
            found_by=found_by,
            in_flight=len(consumer.in_flight),
            is_over=False,
        )
        self.announce(seen.told)
        if act == CUT:
            self._cut(consumer, seen)
        elif act == DISCONNECT:
            connection.end(
                FlowControlError(
                    f"subscription {consumer.key!r} is too slow: {text} ({found_by}); "
                    "acknowledge sooner, or use a smaller prefetch"
                )
            )

    @staticmethod
    def _cut(consumer: Consumer, seen: _Seen) -> None:
        seen.prefetch_count = consumer.prefetch_count
        consumer.prefetch_count = 1

    def _is_over(
        self, connection: Connection, consumer: Consumer, seen: _Seen, told: SlowConsumer
    ) -> None:
        seen.told = None
        self.tell(
            Event.CONSUMER_RECOVERED,
            _log,
            "consumer=%r destination=%s client=%r: no longer slow (%s)",
            consumer.key,
            consumer.destination,
            connection.client_id,
            told.found_by,
        )
        self._is_told_over(told, len(consumer.in_flight))
        if seen.prefetch_count and consumer.prefetch_count == 1:
            consumer.prefetch_count = seen.prefetch_count
            self._flow.mark_lists(consumer)
        seen.prefetch_count = 0

    def _is_told_over(self, told: SlowConsumer, in_flight: int) -> None:
        self.slow -= 1
        self.announce(replace(told, in_flight=in_flight, is_over=True))


def _waits(consumer: Consumer) -> bool:
    """More waits for *consumer* in its lists (of many, only some are checked) than it can be given now."""
    if consumer.room() > 0:
        return False
    _, first_list, _ = next(iter(consumer.in_flight.values()))
    return any(
        not (pending_list.is_removed or pending_list.is_paused)
        and pending_list.cursor.size > 0
        and _has_more(pending_list, consumer)
        for pending_list in chain((first_list,), islice(consumer.lists, STEP_LISTS))
    )


def _has_more(pending_list: PendingList, consumer: Consumer) -> bool:
    """Something that waits there may be for it."""
    if consumer.matches is None or not pending_list.is_queue or pending_list.selecting is None:
        return True
    return pending_list.selecting.has_more_for(consumer)
