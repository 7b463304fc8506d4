"""A queue under everything that can happen to it, beside a model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from broker_harness import Broker, Client
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from virtual_loop import VirtualLoop

from tidegate.config import DestinationPolicy
from tidegate.spi import StoredMessage, StoreFullError


class Acknowledged(NamedTuple):
    """Token of an acknowledgement, and of the commit that holds it and a message."""

    numbers: frozenset[int]
    sent: frozenset[int]


class _Changed(Exception):  # noqa: N818
    """The client changed its mind."""


class QueueModel(RuleBasedStateMachine):
    """One queue under everything that can happen to it, beside a model of sets.

    Checked at every delivery: nothing invented, nothing refused, nothing acknowledged comes, no
    message is out twice, first deliveries are in order. Checked whenever the store can write:
    everything confirmed is still there, and nobody with room waits while something is pending.
    """

    broker: Broker
    producer: Client

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=lambda: _virtual_loop(self.problems))
        self.problems: list[object] = []
        self.sent = 0
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.acknowledged: set[int] = set()  # must not come again in this life of the gateway
        self.acknowledged_durably: set[int] = set()  # must never come again
        self.acknowledged_perhaps: set[int] = set()  # nobody heard how it ended
        self.commits: dict[Client, set[int]] = {}  # acknowledged by a commit without an answer
        self.out: dict[int, Client] = {}
        self.first_delivered = 0
        self.seen: set[int] = set()
        self.clients: list[Client] = []
        self.prefetch: dict[Client, int] = {}

    def do(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.runner.run(coroutine)
        assert not self.problems, self.problems

    # --- the world

    @initialize(cursor=st.sampled_from(["store", "vm", "file"]), room=st.integers(1, 20))
    def begin(self, cursor: str, room: int) -> None:
        async def start() -> None:
            policy = DestinationPolicy(
                match="q", cursor=cursor, memory_limit=room * 602, page_count=3, max_deliveries=4
            )
            self.broker = Broker(policy)
            await self.broker.start()
            await self._new_producer()

        self.do(start())

    async def _new_producer(self) -> None:
        self.producer = await self.broker.client()
        await self._new_consumer(4)

    async def _new_consumer(self, prefetch: int) -> None:
        client = await self.broker.client()
        client.on_deliver = lambda _key, messages: self._note_delivery(client, messages)
        self.clients.append(client)
        self.prefetch[client] = prefetch
        self.commits[client] = set()
        client.subscribe("queue://q", prefetch_count=prefetch)

    def _note_delivery(self, client: Client, messages: Sequence[StoredMessage]) -> None:
        try:
            self._check_delivery(client, messages)
        except AssertionError as error:  # the broker would only log it
            self.problems.append(str(error))

    def _check_delivery(self, client: Client, messages: Sequence[StoredMessage]) -> None:
        for stored in messages:
            number = int(stored.message.body)
            assert 0 < number <= self.sent, "invented"
            assert number not in self.refused, "a refused message was delivered"
            assert number not in self.acknowledged, "an acknowledged message was delivered"
            assert number not in self.out, "delivered to two consumers at once"
            if number > self.first_delivered:
                self.first_delivered = number
            else:
                assert number in self.seen, "first deliveries out of order"
            self.seen.add(number)
            self.out[number] = client

    def _learn(self) -> None:
        """Take in what clients were told."""
        for token in self.producer.confirmations:
            if isinstance(token, range):
                self.confirmed |= set(token)
        for token, error in self.producer.failures:
            assert isinstance(error, StoreFullError)
            if isinstance(token, range):
                self.refused |= set(token)
        self.producer.confirmations.clear()
        self.producer.failures.clear()
        for client in self.clients:
            for token in client.confirmations:
                assert isinstance(token, Acknowledged)
                self.acknowledged_durably |= token.numbers
                self.commits[client] -= token.numbers
                self.confirmed |= token.sent
            for token, _error in client.failures:
                if token is not None:  # a commit that was undone
                    assert isinstance(token, Acknowledged)
                    self.acknowledged -= token.numbers
                    self.commits[client] -= token.numbers
                    self.out |= dict.fromkeys(token.numbers, client)
                    self.refused |= token.sent
            client.confirmations.clear()
            client.failures.clear()

    # --- what can happen

    @rule(count=st.integers(1, 12), in_transaction=st.booleans(), together=st.booleans())
    def publish(self, count: int, in_transaction: bool, together: bool) -> None:
        async def publish() -> None:
            connection = self.producer.connection
            numbers = range(self.sent + 1, self.sent + count + 1)
            try:
                if in_transaction:
                    self.sent += count
                    connection.begin("p")
                    for number in numbers:
                        self.producer.send("queue://q", f"{number}", transaction="p")
                    connection.commit("p", numbers)
                else:
                    for number in numbers:
                        self.sent = number
                        self.producer.send("queue://q", f"{number}", range(number, number + 1))
            except StoreFullError:
                self.refused |= set(range(numbers.start, self.sent + 1)) - self.confirmed
                self.refused -= {
                    number
                    for unit in self.broker.core.writer.turn.units
                    if isinstance(unit.token, range)
                    for number in unit.token
                }
                if in_transaction:
                    connection.abort("p")
            if not together:
                await self.broker.settle()

        self.do(publish())

    @precondition(lambda self: len(self.clients) < 3)
    @rule(prefetch=st.integers(1, 9))
    def consume(self, prefetch: int) -> None:
        async def consume() -> None:
            await self._new_consumer(prefetch)
            await self.broker.settle()

        self.do(consume())

    def _some_out(self, data: st.DataObject, client: Client) -> list[int]:
        mine = sorted(number for number, holder in self.out.items() if holder is client)
        if not mine:
            return []
        return data.draw(st.lists(st.sampled_from(mine), unique=True, min_size=1))

    def _sequences(self, client: Client, numbers: list[int]) -> list[int]:
        consumer = client.connection.consumers["s"]
        by_number = {int(entry[0].message.body): key for key, entry in consumer.in_flight.items()}
        return [by_number[number] for number in numbers]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), way=st.sampled_from(["commit", "commit", "abort"]), wait=st.booleans())
    def acknowledge_in_a_transaction(self, data: st.DataObject, way: str, wait: bool) -> None:
        self.acknowledge(data, way, wait)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), way=st.just("plain"), wait=st.booleans())
    def acknowledge(self, data: st.DataObject, way: str, wait: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        numbers = self._some_out(data, client)
        if not numbers:
            return

        async def acknowledge() -> None:
            connection = client.connection
            sequences = self._sequences(client, numbers)
            token = Acknowledged(frozenset(numbers), frozenset())
            if way == "plain":
                connection.acknowledge("s", sequences, token)
            else:
                self.sent += 1
                token = Acknowledged(token.numbers, frozenset((self.sent,)))
                connection.begin("a")
                connection.acknowledge("s", sequences, None, "a")
                client.send("queue://q", f"{self.sent}", transaction="a")
                try:
                    if way == "abort":
                        raise _Changed
                    connection.commit("a", token)
                except (StoreFullError, _Changed):
                    connection.abort("a")
                    self.refused |= token.sent
                    return
                self.commits[client] |= token.numbers
            self.acknowledged |= token.numbers
            for number in numbers:
                del self.out[number]
            if wait:
                await self.broker.settle()

        self.do(acknowledge())

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        numbers = self._some_out(data, client)

        async def reject() -> None:
            for number in numbers:
                sequences = self._sequences(client, [number])
                del self.out[number]
                client.connection.reject("s", sequences)
            await self.broker.settle()

        self.do(reject())

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), by_unsubscribe=st.booleans())
    def leave(self, data: st.DataObject, by_unsubscribe: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))

        async def leave() -> None:
            self._learn()
            self.out = {n: holder for n, holder in self.out.items() if holder is not client}
            if by_unsubscribe:
                client.connection.unsubscribe("s")
            client.connection.disconnect(graceful=by_unsubscribe)
            self.clients.remove(client)
            # A commit may still be undone, and nobody is there to be told.
            self.acknowledged_perhaps |= self.commits[client]
            self.acknowledged -= self.commits[client]

        self.do(leave())

    @rule(times=st.integers(1, 4))
    def fill_the_disk(self, times: int) -> None:
        self.broker.store.refuse(times)

    @rule(is_slow=st.booleans())
    def slow_down_the_disk(self, is_slow: bool) -> None:
        if is_slow:
            self.broker.store.hold()
        else:
            self.broker.store.release()

    @rule(seconds=st.floats(0.1, 3))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        async def restart() -> None:
            if cleanly:
                self.broker.store.release()
                self.broker.store.is_full = lambda _batch: False
                self.out.clear()
                for client in self.clients:
                    client.on_deliver = None
                await self.broker.core.stop()
                self._learn()
                self.out.clear()
                await self.broker.start()
            else:
                self._learn()
                await self.broker.kill()
            self.out.clear()
            self.clients.clear()
            # Acknowledged, but perhaps not durably so: these may come again.
            self.acknowledged_perhaps |= self.acknowledged - self.acknowledged_durably
            self.acknowledged = set(self.acknowledged_durably)
            await self._new_producer()

        self.do(restart())

    # --- what must be so

    @rule()
    def everything_confirmed_is_there_and_moves(self) -> None:
        async def check() -> None:
            broker = self.broker
            broker.store.release()
            broker.store.is_full = lambda _batch: False
            await broker.core.writer.drained()
            await broker.settle()
            self._learn()
            if "queue://q" not in broker.contents.destinations:
                assert not self.confirmed
                return
            pending = [int(body) for body in broker.store.pending("queue://q")]
            dead = (
                [int(body) for body in broker.store.pending("queue://DLQ.q")]
                if "queue://DLQ.q" in broker.contents.destinations
                else []
            )
            assert len(set(pending + dead)) == len(pending) + len(dead), "a message is there twice"
            gone = self.acknowledged | self.acknowledged_perhaps
            assert self.confirmed - gone <= set(pending + dead), "lost"
            assert not self.acknowledged_durably & set(pending + dead), "came back"
            assert not self.refused & set(pending + dead), "refused, but kept"
            assert set(self.out) <= set(pending)
            if set(pending) - set(self.out):
                for client in self.clients:
                    held = sum(holder is client for holder in self.out.values())
                    assert held >= self.prefetch[client], "a consumer with room waits"

        self.do(check())

    def teardown(self) -> None:
        if not hasattr(self, "broker"):
            self.runner.close()
            return
        try:
            self.everything_confirmed_is_there_and_moves()
        finally:
            for client in self.clients:
                client.on_deliver = None
            self.do(self.broker.__aexit__())
            self.runner.close()
        assert not self.problems, self.problems


def _virtual_loop(problems: list[object]) -> asyncio.AbstractEventLoop:
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    return loop


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(
    max_examples=examples(60),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
