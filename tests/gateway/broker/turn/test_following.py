"""An observer is told of turns and deliveries; one that fails is left out, and messages go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest
from acknowledged import ToySink, acknowledge
from broker_harness import Broker

from tidegate.broker.connection.connection import Connection
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Headers,
    HoldFor,
    Identity,
    Move,
    Operation,
    RecordDelivery,
    SinkHealth,
    SinkProgress,
    SinkState,
    StoredMessage,
    content_bytes,
)

MARK = ("mark", "1")


class Notes:
    """Marks each message whose body begins with "m", and writes down what it is told."""

    def __init__(self) -> None:
        self.turns: list[list[bytes]] = []
        self.published: list[tuple[bytes, str]] = []
        self.delivered: list[tuple[str, str, bytes, int]] = []
        self.written: list[Operation] = []
        self.rows: list[int] = []
        self.carried: list[list[tuple[str, int, int, str]]] = []
        self.hold: HoldFor | None = None

    def observer_starts(self, hold: HoldFor) -> None:
        assert not self.turns
        self.hold = hold

    def observe_publishing(self, messages: Sequence[StoredMessage]) -> Mapping[int, Headers]:
        self.turns.append([stored.message.body for stored in messages])
        return {
            at: (*stored.message.headers, MARK)
            for at, stored in enumerate(messages)
            if stored.message.body[:1] == b"m"
        }

    def observe_published(self, messages: Sequence[StoredMessage], problem: str) -> None:
        assert all(stored.message.headers[-1] == MARK for stored in messages)
        self.published += [(stored.message.body, problem) for stored in messages]

    def observe_delivering(
        self,
        receiver: Identity,
        subscription: str,
        messages: Sequence[StoredMessage],
        pending_list: Callable[[int], int],
    ) -> None:
        self.delivered += [
            (receiver.client_id, subscription, stored.message.body, pending_list(stored.sequence))
            for stored in messages
        ]

    def observe_written(self, operations: Sequence[Operation], rows: range) -> None:
        self.written += operations
        self.rows += rows

    def observe_carried(self, sinks: Sequence[SinkProgress]) -> None:
        self.carried.append(
            [
                (item.name, item.health.mark, item.released, item.target_of("queue://q"))
                for item in sinks
            ]
        )

    def observer_counts(self) -> Mapping[str, int]:
        return {"notes.turns": len(self.turns)}

    def kinds(self, *types: type) -> list[Operation]:
        return [item for item in self.written if isinstance(item, types)]


async def test_what_it_remembers_is_held_for_principals() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        hold = notes.hold
        assert hold is not None
        accounts = broker.core.accounts
        assert hold("ann", 1000)
        assert (accounts.of("ann").held, accounts.of("ben").held) == (1000, 0)
        assert accounts.snapshot()["held.observed.bytes"] == 1000
        assert hold("ann", -1000)
        assert accounts.snapshot()["held.observed.bytes"] == 0


async def test_headers_that_it_gives_are_stored_and_delivered() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("queue://a")
        client.send("queue://a", b"marked", 1, headers=(("a", "b"),))
        client.send("queue://a", b"plain", 2)
        await broker.settle()
        assert client.confirmations == [1, 2]
        assert notes.turns == [[b"marked", b"plain"]]
        assert notes.published == [(b"marked", "")]
        first, second = broker.store.operations(AddMessage)
        assert first.message.headers == (("a", "b"), MARK)
        assert second.message.headers == ()
        (_, got), (_, plain) = client.deliveries
        assert got.message is first.message
        assert got.size == content_bytes(got.message)
        number = broker.core.destinations.queues["queue://a"].id
        assert notes.delivered == [("c", "s", b"marked", number), ("c", "s", b"plain", number)]
        client.ack_all()
        await broker.settle()
        (left,) = notes.kinds(Acknowledge)
        assert isinstance(left, Acknowledge)
        assert left.sequences == (got.sequence, plain.sequence)
        assert broker.core.client_counts()["notes.turns"] == len(notes.turns)


async def test_each_of_a_mixed_turn_gets_its_own() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://t", "t", qos=1)
        client.subscribe("topic://u", "u", qos=0, acknowledge=False)
        await broker.settle()
        for number in range(4):
            for name in ("queue://a", "topic://t", "topic://u", "queue://b", "topic://nobody"):
                body = f"{'mx'[number % 2]} {name} {number}"
                client.send(name, body, headers=(("of", body),), qos=1)
        await broker.settle()
        stored = broker.store.operations(AddMessage)
        assert len(stored) == 12
        for message in [
            *(item.message for item in stored),
            *(m.message for _, m in client.deliveries),
        ]:
            own = (("of", message.body.decode()),)
            assert message.headers == ((*own, MARK) if message.body[:1] == b"m" else own)
        assert len(notes.published) == 10
        client.ack_all("t")
        await broker.settle()


async def test_what_nobody_acknowledges_has_no_list_and_who_only_looks_is_not_told_of() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://a", qos=0, acknowledge=False)
        client.send("topic://a", b"m", qos=0)
        client.send("queue://b", b"m")
        await broker.settle()
        await client.browse("queue://b")
        assert client.bodies("b") == [b"m"]
        assert notes.delivered == [("c", "s", b"m", 0)]


async def test_who_need_not_acknowledge_takes_from_a_list_that_has_it() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("queue://a", acknowledge=False)
        client.subscribe("queue://b", "t", acknowledge=False)
        client.send("queue://a", b"m1")
        client.send("queue://b", b"m2")
        await broker.settle()
        queues = broker.core.destinations.queues
        assert sorted(notes.delivered) == [
            ("c", "s", b"m1", queues["queue://a"].id),
            ("c", "t", b"m2", queues["queue://b"].id),
        ]
        assert len(notes.kinds(Acknowledge)) == 2


class Carrier(ToySink):
    """A sink that tells of its commits."""

    def target_of(self, destination: str) -> str:
        return f"/lake/{destination[-1]}"

    def at(self, mark: int) -> None:
        self.says = SinkHealth(SinkState.RUNNING, mark, mark)


async def test_it_hears_which_rows_were_made_and_how_far_sinks_are() -> None:
    notes = Notes()
    async with Broker(extensions=[notes], keep_acknowledged=True) as broker:
        log = broker.core.acknowledged_log
        plain, one, two = (log.reader(name) for name in ("plain", "one", "two"))
        plain.sink = ToySink()
        await acknowledge(broker, "a", "b")
        await asyncio.sleep(2)
        assert (notes.rows, notes.carried) == ([], [])  # nobody tells of commits
        one.sink, two.sink = sinks = Carrier(), Carrier()
        await acknowledge(broker, "c", "d")
        assert notes.rows == [1, 2, 3, 4]
        await asyncio.sleep(2)
        assert notes.carried == [[("one", 0, 0, "/lake/q"), ("two", 0, 0, "/lake/q")]]
        sinks[0].at(3)
        await one.release(3)  # at once, for each commit
        assert notes.carried[1:] == [[("one", 3, 3, "/lake/q"), ("two", 0, 0, "/lake/q")]]
        sinks[1].at(4)
        await asyncio.sleep(2)
        assert notes.carried[2:] == [[("one", 3, 3, "/lake/q"), ("two", 4, 0, "/lake/q")]]
        await asyncio.sleep(5)
        assert len(notes.carried) == 3


async def test_a_retained_message_stays_as_it_was_published() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client("mqtt", "c")
        client.subscribe("topic://a", "live", qos=1)
        client.send("topic://a", b"m", 1, retain=True, qos=1)
        await broker.settle()
        assert client.deliveries[0][1].message.headers == (MARK,)
        (retained,) = broker.contents.retained.values()
        assert retained.headers == ()


async def test_a_transaction_is_published_with_its_commit() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client()
        client.connection.begin("t")
        client.send("queue://a", b"m", transaction="t")
        await broker.settle()
        assert not notes.published
        client.connection.commit("t", 1)
        await broker.settle()
        assert notes.published == [(b"m", "")]
        client.connection.begin("t")
        client.send("queue://a", b"m2", transaction="t")
        client.connection.abort("t")
        await broker.settle()
        assert notes.published == [(b"m", "")]


async def test_what_is_moved_keeps_its_headers() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client()
        client.subscribe("queue://a")
        client.send("queue://a", b"m")
        await broker.settle()
        for _ in range(6):  # max_deliveries
            client.connection.reject("s", [client.deliveries[-1][1].sequence])
            await broker.settle()
        (move,) = broker.store.operations(Move)
        assert [name for name, _ in move.message.headers].count("mark") == 1
        assert notes.published == [(b"m", "")]
        assert notes.kinds(RecordDelivery)
        assert notes.kinds(Move) == [move]


async def test_it_hears_what_the_store_had_no_room_for() -> None:
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client()
        client.send("queue://a", b"x")
        await broker.settle()
        broker.store.refuse(1)
        client.send("queue://a", b"m", 1)
        client.send("topic://nobody", b"m to nobody", 2)
        await broker.settle()
        assert [token for token, _ in client.failures] == [1]
        assert sorted(notes.published) == [
            (b"m", "the store had no room for it"),
            (b"m to nobody", ""),
        ]


async def test_it_hears_that_the_store_has_failed(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")
    notes = Notes()
    async with Broker(extensions=[notes]) as broker:
        client = await broker.client()
        broker.store.error = OSError(5, "Input/output error")
        client.send("queue://a", b"m", 1)
        await broker.settle()
        ((body, problem),) = notes.published
        assert body == b"m"
        assert problem
        broker.store.error = None


@pytest.mark.parametrize("method", [name for name in vars(Notes) if name.startswith("observe")])
async def test_one_that_fails_is_logged_and_left_out(
    method: str, bug: BaseException, logged_errors: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    logged_errors.append("is not called again")
    notes, others = Notes(), Notes()

    def fail(*_: object) -> None:
        raise bug

    setattr(notes, method, fail)
    async with Broker(extensions=[notes, others], keep_acknowledged=True) as broker:
        client = await broker.client()
        client.subscribe("queue://a")
        client.send("queue://a", b"m1", 1)
        await broker.settle()
        broker.core.client_counts()
        broker.core.acknowledged_log.reader("lake").sink = Carrier()
        broker.core.acknowledged_log.look_at_progress()
        client.send("queue://a", b"m2", 2)
        await broker.settle()
        assert client.confirmations == [1, 2]
        assert client.bodies() == [b"m1", b"m2"]
        assert others.published == [(b"m1", ""), (b"m2", "")]
        assert len(notes.turns) <= 1
        assert sum("is not called again" in text for text in caplog.messages) == 1
        client.ack_all()
        await broker.settle()


async def test_without_one_connections_are_plain() -> None:
    async with Broker() as broker:
        client = await broker.client()
        assert broker.core.writer.following is None
        assert type(client.connection) is Connection
