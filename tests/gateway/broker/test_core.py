"""The core: who gets in, what extensions may do, start, stop, and a model of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker_harness import (
    CURSORS,
    Broker,
    Client,
    Core,
    ScriptedStore,
    VirtualLoop,
    connect_request,
    message,
    run,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tidegate.broker import _core
from tidegate.broker._connection import AUTHORIZATIONS_MAX
from tidegate.config import BrokerConfig, DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    AddMessage,
    ConnectionEndedError,
    Credentials,
    FlowControlError,
    Message,
    RequestError,
    StoredMessage,
    StoreFullError,
    StoreLockedError,
)
from tidegate.testing.memory_store import MemoryContents

# --- who gets in ----------------------------------------------------------------------------------


class Accounts:
    """Knows one user; abstains for clients without a name; may take its time."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[Credentials] = []
        self.waiting = 0

    async def authenticate(self, credentials: Credentials) -> str | None:
        self.asked.append(credentials)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if not credentials.username:
            return None
        if (credentials.username, credentials.password) == ("ann", b"secret"):
            return "user:ann"
        if credentials.username == "crash":
            raise RuntimeError("a bug in an extension")
        raise AccessError("wrong user name or password", principal=credentials.username)


def test_the_first_authenticator_that_does_not_abstain_decides(logged_errors: list[str]) -> None:
    logged_errors.append("authenticator=")

    async def main() -> None:
        first, second = Accounts(), Accounts()
        async with Broker(extensions=[first, second]) as broker:
            client = await broker.client(username="ann", password=b"secret")
            assert client.connection.principal == "user:ann"
            assert second.asked == []
            for name in ("ann", "bob", "crash"):  # a bug refuses, too
                with pytest.raises(AccessError):
                    await broker.client(username=name, password=b"wrong")
            with pytest.raises(AccessError):
                await broker.client(anonymous_allowed=False)
            assert len(broker.core.connections) == 1

    run(main())


def test_a_name_that_nobody_checked_is_not_a_principal() -> None:
    """Authorizers decide by it: who calls himself admin where anybody may come is not admin."""

    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client(username="admin")
            assert client.connection.principal == "anonymous"

    run(main())


def test_connections_are_limited_also_when_many_authenticate_at_once() -> None:
    async def main() -> None:
        accounts = Accounts()
        async with Broker(extensions=[accounts], connections_max=2) as broker:
            accounts.gate.clear()
            coming = [asyncio.ensure_future(broker.client()) for _ in range(5)]
            while accounts.waiting < 5:
                await asyncio.sleep(0)
            accounts.gate.set()
            results = await asyncio.gather(*coming, return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == [
                "Client",
                "Client",
                "FlowControlError",
                "FlowControlError",
                "FlowControlError",
            ]
            with pytest.raises(FlowControlError, match="connections_max"):
                await broker.client()
            (gone, _) = [result for result in results if isinstance(result, Client)]
            gone.connection.disconnect(graceful=True)
            await broker.client()

    run(main())


def test_of_two_clients_that_authenticate_at_once_under_one_client_id_one_stays() -> None:
    async def main() -> None:
        accounts = Accounts()
        async with Broker(extensions=[accounts]) as broker:
            accounts.gate.clear()
            coming = [
                asyncio.ensure_future(
                    broker.client("mqtt", "c", clean_start=False, session_expiry=100)
                )
                for _ in range(2)
            ]
            while accounts.waiting < 2:
                await asyncio.sleep(0)
            accounts.gate.set()
            one, two = await asyncio.gather(*coming)
            assert [client.ended is None for client in (one, two)] == [False, True]
            two.subscribe("topic://t", "t", durable_name="t", qos=1)
            two.send("topic://t", "m")
            one.connection.disconnect(graceful=False)
            await broker.settle()
            assert two.bodies() == [b"m"]
            assert len(broker.core.connections) == 1
            session = broker.core.sessions.get("mqtt", "c")
            assert session is not None
            assert session.connection is two.connection

    run(main())


def test_a_cancelled_connect_leaves_nothing_and_takes_nothing_over() -> None:
    async def main() -> None:
        accounts = Accounts()
        async with Broker(extensions=[accounts]) as broker:
            older = await broker.client("mqtt", "c")
            accounts.gate.clear()
            coming = asyncio.ensure_future(broker.client("mqtt", "c"))
            while accounts.waiting < 1:
                await asyncio.sleep(0)
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            accounts.gate.set()
            assert older.ended is None
            assert broker.core.connections == {older.connection}

    run(main())


def test_a_client_that_authenticates_while_the_gateway_stops_does_not_get_in() -> None:
    async def main() -> None:
        accounts = Accounts()
        async with Broker(extensions=[accounts]) as broker:
            accounts.gate.clear()
            coming = asyncio.ensure_future(broker.client())
            while accounts.waiting < 1:
                await asyncio.sleep(0)
            await broker.core.end_connections()
            accounts.gate.set()
            with pytest.raises(ConnectionEndedError):
                await coming
            with pytest.raises(ConnectionEndedError):
                await broker.client()

    run(main())


# --- what extensions may do -----------------------------------------------------------------------


class Rules:
    """Allows by (action, destination) and counts how often it is asked."""

    def __init__(self, allows: Callable[[str, Action, str], bool]) -> None:
        self.allows = allows
        self.asked = 0

    def authorize(self, principal: str, action: Action, destination: str) -> bool:
        self.asked += 1
        return self.allows(principal, action, destination)


def test_what_one_authorizer_refuses_is_refused() -> None:
    async def main() -> None:
        everything = Rules(lambda *_: True)
        readers = Rules(lambda _who, what, where: what is Action.SUBSCRIBE or where != "queue://q")
        async with Broker(extensions=[everything, readers]) as broker:
            client = await broker.client("mqtt", "c", will=message("queue://q", "no will either"))
            client.subscribe("queue://q")
            client.connection.begin("t")
            for transaction in (None, "t"):
                with pytest.raises(AccessError) as refused:
                    client.send("queue://q", "m", transaction=transaction)
                assert refused.value.destination == "queue://q"
                assert refused.value.principal == "anonymous"
            client.send("queue://other", "m", "r")
            await broker.settle()
            assert client.confirmations == ["r"]
            client.connection.disconnect(graceful=False)
            await broker.settle()
            assert broker.store.pending("queue://q") == []

    run(main())


def test_an_answer_is_remembered_for_the_connection_and_the_memory_is_limited() -> None:
    async def main() -> None:
        rules = Rules(lambda *_: True)
        async with Broker(extensions=[rules]) as broker:
            client = await broker.client()
            for _ in range(10):
                client.send("topic://t", "m")
            assert rules.asked == 1
            for number in range(AUTHORIZATIONS_MAX + 10):
                client.send(f"topic://t.{number}", "m")
            assert len(client.connection.authorized) <= AUTHORIZATIONS_MAX
            other = await broker.client()
            asked = rules.asked
            other.send("topic://t", "m")
            assert rules.asked == asked + 1

    run(main())


class Stamp:
    """Adds a header; refuses one body; sends another elsewhere; crashes on a third."""

    def intercept(self, message: Message, principal: str) -> Message:
        if message.body == b"refused":
            raise AccessError("not this", principal=principal, destination=message.destination)
        if message.body == b"crash":
            raise RuntimeError("a bug in an extension")
        if message.body == b"elsewhere":
            return msgspec.structs.replace(message, destination="queue://elsewhere")
        return msgspec.structs.replace(message, headers=(("seen-by", principal),))


def test_an_interceptor_may_change_redirect_or_refuse_a_publish(logged_errors: list[str]) -> None:
    logged_errors.append("interceptor=")

    async def main() -> None:
        async with Broker(extensions=[Stamp()]) as broker:
            client = await broker.client()
            client.subscribe("queue://q")
            client.send("queue://q", "m")
            client.send("queue://q", "elsewhere")
            for body in ("refused", "crash"):
                with pytest.raises(AccessError):
                    client.send("queue://q", body)
            await broker.settle()
            assert client.bodies() == [b"m"]
            assert client.deliveries[0][1].message.headers == (("seen-by", "anonymous"),)
            assert broker.store.pending("queue://elsewhere") == [b"elsewhere"]

    run(main())


def test_an_authorizer_that_crashes_refuses(logged_errors: list[str]) -> None:
    logged_errors.append("authorizer=")

    def crash(*_args: object) -> bool:
        raise RuntimeError("a bug in an extension")

    async def main() -> None:
        async with Broker(extensions=[Rules(crash)]) as broker:
            client = await broker.client()
            with pytest.raises(AccessError):
                client.send("queue://q", "m")
            with pytest.raises(AccessError):
                client.subscribe("queue://q")

    run(main())


# --- destinations ---------------------------------------------------------------------------------


def test_queues_are_limited_and_rejected_messages_are_then_redelivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_core, "DESTINATIONS_MAX", 1)

    async def main() -> None:
        async with Broker(DestinationPolicy(match=">", max_deliveries=1)) as broker:
            client = await broker.client()
            client.subscribe("queue://q")
            client.send("queue://q", "m")
            with pytest.raises(RequestError, match="limit"):
                client.send("queue://r", "m")
            with pytest.raises(RequestError, match="limit"):
                client.subscribe("queue://r", "r")
            await broker.settle()
            client.connection.reject("s", [1], "rejected")  # no dead-letter queue can be made
            await broker.settle()
            assert client.confirmations == ["rejected"]
            assert client.counts() == [0, 1]

    run(main())


@pytest.mark.parametrize(("stored", "floor", "next_one"), [(0, 500, 500), (900, 500, 901)])
def test_sequences_begin_above_what_is_stored_and_not_below_the_floor(
    stored: int, floor: int, next_one: int
) -> None:
    """Messages that nobody stores take sequences, too; the floor keeps those from coming again."""

    async def main() -> None:
        broker = Broker(contents=MemoryContents(last_sequence=stored))
        broker.sequence_floor = floor
        async with broker:
            client = await broker.client()
            client.subscribe("topic://t", acknowledge=False)
            client.send("topic://t", "m")
            await broker.settle()
            assert client.sequences() == [next_one]

    run(main())


def test_sequences_and_list_ids_go_on_after_a_restart() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            client.send("queue://a", "1")
            client.send("queue://b", "2")
            await broker.settle()
            await broker.kill()
            client = await broker.client()
            client.send("queue://c", "3")
            await broker.settle()
            assert [op.sequence for op in broker.store.operations(AddMessage)] == [3]
            assert sorted(broker.contents.destinations.values()) == [1, 2, 3]

    run(main())


# --- start and stop -------------------------------------------------------------------------------


def test_stopping_confirms_what_was_accepted_then_tells_the_clients_then_closes_the_store() -> None:
    async def main() -> None:
        broker = Broker()
        async with broker:
            client = await broker.client()
            broker.store.hold()
            client.send("queue://q", "accepted", "r")
            stopping = asyncio.ensure_future(broker.core.stop())
            await broker.settle()
            assert not stopping.done()
            assert client.is_paused
            assert client.ended is None
            broker.store.release()
            await stopping
            assert client.confirmations == ["r"]
            assert isinstance(client.ended, ConnectionEndedError)
            assert client.ended.reason == "shutdown"
            assert broker.store.is_closed
            assert broker.core.connections == set()

    run(main())


def test_stopping_closes_the_store_also_when_the_connections_were_ended_before() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            await broker.core.end_connections()
            assert client.ended is not None
            assert not broker.store.is_closed
            await broker.core.end_connections()
            await broker.core.stop()
            assert broker.store.is_closed
            assert all(task.done() for task in broker.core._tasks)
            await broker.core.stop()

    run(main())


def test_stopping_does_not_first_empty_a_queue_into_an_automatic_consumer() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            for number in range(10_000):
                client.send("queue://q", f"{number}")
            await broker.settle()
            client.subscribe("queue://q", acknowledge=False, prefetch_count=100)
            while not client.deliveries:
                await asyncio.sleep(0)
            await broker.core.stop()
            assert len(client.deliveries) < 1_000
            pending = len(broker.store.pending("queue://q"))
            assert pending + len(client.deliveries) == 10_000

    run(main())


def test_stopping_returns_what_was_in_flight() -> None:
    async def main() -> None:
        contents = MemoryContents()
        async with Broker(contents=contents) as broker:
            client = await broker.client()
            client.subscribe("queue://q")
            client.send("queue://q", "m")
            await broker.settle()
        async with Broker(contents=contents) as broker:
            client = await broker.client()
            client.subscribe("queue://q")
            await broker.settle()
            assert (client.bodies(), client.counts()) == ([b"m"], [1])

    run(main())


def test_wills_are_published_when_the_gateway_stops_because_nobody_said_goodbye() -> None:
    async def main() -> None:
        async with Broker() as broker:
            watcher = await broker.client("stomp", "w")
            watcher.subscribe("topic://w", durable_name="d")
            await broker.client("mqtt", "c", will=message("topic://w", "gone"))
            await broker.core.stop()
            assert [m.body for m in _all_messages(broker)] == [b"gone"]

    run(main())


def _all_messages(broker: Broker) -> list[Message]:
    return [stored.message for held in broker.contents.lists.values() for stored in held.values()]


def test_a_store_that_cannot_be_opened_ends_the_start() -> None:
    async def main() -> None:
        async with Broker() as broker:
            second = Core(
                BrokerConfig(),
                ScriptedStore(broker.contents),
                cursors=CURSORS,
                policies=(),
                temporary_directory=Path("/nowhere"),
                version="0",
            )
            with pytest.raises(StoreLockedError):
                await second.start()

    run(main())


def test_the_broker_says_who_it_is() -> None:
    async def main() -> None:
        async with Broker(name="shop") as broker:
            assert (broker.core.name, broker.core.version) == ("shop", "0")
            assert broker.core.store_id == broker.contents.store_id
            result = await broker.core.connect(connect_request(), Client())
            assert not result.session_present
            assert list(result.inflight) == []

    run(main())


# --- a model --------------------------------------------------------------------------------------


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
        self.transactions = 0
        self.is_full = False

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
        self.producer.on_deliver = None

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
                if isinstance(token, frozenset):
                    self.acknowledged_durably |= token
                    self.commits[client] -= token
            for token, _error in client.failures:
                if isinstance(token, frozenset):  # a commit that was undone
                    self.acknowledged -= token
                    self.commits[client] -= token
                    self.out |= dict.fromkeys(token, client)
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
                    if isinstance(unit[3], range)
                    for number in unit[3]
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
            client = await self.broker.client()
            client.on_deliver = lambda _key, messages: self._note_delivery(client, messages)
            self.clients.append(client)
            self.prefetch[client] = prefetch
            self.commits[client] = set()
            client.subscribe("queue://q", prefetch_count=prefetch)
            await self.broker.settle()

        self.do(consume())

    def _some_out(self, data: st.DataObject, client: Client) -> list[int]:
        mine = sorted(number for number, holder in self.out.items() if holder is client)
        if not mine:
            return []
        return data.draw(st.lists(st.sampled_from(mine), unique=True, min_size=1))

    def _sequences(self, client: Client, numbers: list[int]) -> list[int]:
        consumer = client.connection._consumers["s"]
        by_number = {int(entry[0].message.body): key for key, entry in consumer.in_flight.items()}
        return [by_number[number] for number in numbers]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), way=st.sampled_from(["plain", "commit", "abort"]), wait=st.booleans())
    def acknowledge(self, data: st.DataObject, way: str, wait: bool) -> None:
        client = data.draw(st.sampled_from(self.clients))
        numbers = self._some_out(data, client)
        if not numbers:
            return

        async def acknowledge() -> None:
            connection = client.connection
            sequences = self._sequences(client, numbers)
            token = frozenset(numbers)
            if way == "plain":
                connection.acknowledge("s", sequences, token)
            else:
                connection.begin("a")
                connection.acknowledge("s", sequences, None, "a")
                try:
                    if way == "abort":
                        connection.abort("a")
                        return
                    connection.commit("a", token)
                except StoreFullError:
                    connection.abort("a")
                    return
            self.acknowledged |= token
            if way == "commit":
                self.commits[client] |= token
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

    @rule(what=st.sampled_from(["hold", "release", "fill", "wait"]), times=st.integers(1, 4))
    def disturb_the_store(self, what: str, times: int) -> None:
        store = self.broker.store
        if what == "hold":
            store.hold()
        elif what == "release":
            store.release()
        elif what == "fill":
            store.refuse(times)
        else:
            self.do(asyncio.sleep(0.6 * times))

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
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
