"""Messages that are published again: each once, whatever is killed, full or forbidden meanwhile."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from broker_harness import START_US, Broker, Client
from hypothesis import given, settings
from hypothesis import strategies as st
from operated import ME, ask, bodies
from virtual_loop import run

from tidegate.broker.operate.operations import Operations
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    AddMessage,
    AuditEvent,
    AuditKind,
    Identity,
    RequestError,
    RetainHandling,
    SetRetained,
    StoreError,
    StoreIOError,
    SubscribeRequest,
    Verdict,
)
from tidegate.spi.operate import perform
from tidegate.spi.replay import (
    AskDestinations,
    BeginReplay,
    ForgetReplay,
    PublishReplayed,
    Replay,
    ReplayedMessage,
)

A, B, T = "queue://a", "queue://b", "topic://t"


def some(first: int, end: int, destination: str = A, **more: Any) -> tuple[ReplayedMessage, ...]:
    return tuple(
        ReplayedMessage(str(number), destination, str(number).encode(), **more)
        for number in range(first, end)
    )


async def replay_all(broker: Broker, count: int, replay: str = "r", step: int = 7) -> Replay:
    """As a command does: from wherever it is to the end."""
    found = await ask(broker, BeginReplay(replay, "plan", "0"))
    while not found.is_complete:
        at = int(found.position)
        end = min(at + step, count)
        request = PublishReplayed(
            replay, found.position, some(at + 1, end + 1), is_last=end == count
        )
        found = await ask(broker, request)
        assert not found.problem
    return found


def test_messages_are_published_in_order_and_the_position_is_durable_with_them() -> None:
    async def main() -> None:
        async with Broker() as broker:
            asked = await ask(broker, BeginReplay("r"))
            assert asked == Replay("r", "", "", is_new=True)
            assert broker.store.operations(SetRetained) == []
            begun = await ask(broker, BeginReplay("r", "where to", "0"))
            assert begun == Replay("r", "where to", "0", is_new=True)
            found = await ask(broker, PublishReplayed("r", "0", some(1, 4)))
            assert found == Replay("r", "where to", "3", 3)
            assert broker.store.pending(A) == bodies(*range(1, 4))
            kept = [
                batch for batch in broker.store.batches if any(type(x) is AddMessage for x in batch)
            ]
            assert [type(operation) for operation in kept[-1]][-4:] == [AddMessage] * 3 + [
                SetRetained
            ]
            # Another plan, or place, is not listened to: it goes on where it is.
            again = await ask(broker, BeginReplay("r", "elsewhere", "99"))
            assert again == Replay("r", "where to", "3", 3)
            found = await ask(broker, PublishReplayed("r", "3", through="9", is_last=True))
            assert found == Replay("r", "where to", "9", 3, is_complete=True)
            found = await ask(broker, PublishReplayed("r", "9", some(10, 12)))
            assert found == Replay("r", "where to", "9", 3, is_complete=True)
            assert broker.store.pending(A) == bodies(*range(1, 4))

    run(main())


def test_a_request_that_comes_twice_or_from_two_commands_publishes_once() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, BeginReplay("r", "plan", "0"))
            operations = Operations(broker.core)
            requests = [PublishReplayed("r", "0", some(1, 601)) for _ in range(3)]
            answers = await asyncio.gather(
                *[perform(operations, ME, request) for request in requests]
            )
            assert all(answer == Replay("r", "plan", "600", 600) for answer in answers)
            assert broker.store.pending(A) == bodies(*range(1, 601))

    run(main())


def test_everything_that_a_message_has_is_published() -> None:
    async def main() -> None:
        async with Broker(keep_acknowledged=True) as broker:
            broker.core.acknowledged_log.reader("sink")
            item = ReplayedMessage(
                "1",
                A,
                b"\x00\xff",
                (("k", "1"), ("k", "2"), ("replayed-from", "t")),
                START_US * 2,
                9,
                False,
                1,
                "text/x",
                b"\xfe",
                "queue://answers",
                "stomp",
                "/queue/written",
                1,
            )
            await ask(broker, BeginReplay("r", "plan", "0"))
            await ask(broker, PublishReplayed("r", "0", (item,)))
            client = await broker.consumer(A)
            (found,) = [stored.message for _, stored in client.deliveries]
            for name in ReplayedMessage.__struct_fields__[1:]:
                assert getattr(found, name) == getattr(item, name), name
            assert (found.owner, found.client_id, found.retain) == ("local:me", "", False)
            assert found.received_at >= START_US
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


_DRAWN = st.builds(
    ReplayedMessage,
    position=st.text(max_size=20),
    destination=st.sampled_from([A, B, T]),
    body=st.binary(max_size=50),
    headers=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=4).map(tuple),
    expires_at=st.integers(0, 1 << 62),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    qos=st.integers(0, 2),
    content_type=st.none() | st.text(max_size=5),
    correlation_data=st.none() | st.binary(max_size=5),
    reply_to=st.text(max_size=5),
    protocol=st.sampled_from(["", "stomp", "mqtt"]),
    original_name=st.text(max_size=5),
    payload_format=st.none() | st.integers(0, 1),
)


@given(st.lists(_DRAWN, max_size=3).map(tuple))
@settings(max_examples=50)
def test_a_request_travels_as_it_is(messages: tuple[ReplayedMessage, ...]) -> None:
    request = PublishReplayed("r", "0", messages, "9", is_last=True)
    for codec in (msgspec.msgpack, msgspec.json):
        assert codec.decode(codec.encode(request), type=PublishReplayed) == request


@pytest.mark.parametrize("replay", ["", "a.b", "a/b", "*", "x" * 65, "a\n"])
def test_an_id_is_a_level_of_a_topic(replay: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "begin-replay", "replay": replay}, BeginReplay)


@pytest.mark.parametrize("seed", range(4))
def test_a_gateway_that_is_killed_at_any_write_publishes_each_message_once(seed: int) -> None:
    """Within a step, between steps, and before the answer."""

    async def main() -> None:
        drawn = random.Random(seed)
        async with Broker() as broker:
            for _ in range(12):
                broker.store.release()
                begun = await ask(broker, BeginReplay("r", "plan", "0"))
                if drawn.random() < 0.5:
                    broker.store.hold()  # what is asked for next is never written
                at, end = int(begun.position), int(begun.position) + drawn.randint(1, 700)
                asking = asyncio.create_task(
                    perform(
                        Operations(broker.core),
                        ME,
                        PublishReplayed("r", begun.position, some(at + 1, end + 1)),
                    )
                )
                for _ in range(drawn.randint(0, 30)):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                broker.store.release()
                await broker.kill()
                known = broker.store.pending(A)
                assert known == bodies(*range(1, len(known) + 1))
                found = await ask(broker, BeginReplay("r"))
                assert (found.position, found.count) == (str(len(known)), len(known))
            done = await replay_all(broker, 9000, step=500)
            assert done.count == 9000
            assert broker.store.pending(A) == bodies(*range(1, 9001))

    run(main())


def test_a_store_without_room_takes_back_messages_and_position_together() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            client.subscribe(T, acknowledge=False)
            await ask(broker, BeginReplay("r", "plan", "0"))
            broker.store.refuse(1, AddMessage)
            found = await ask(
                broker, PublishReplayed("r", "0", (*some(1, 3), *some(3, 5, T, qos=0)))
            )
            assert (found.position, found.count, found.kind) == ("0", 0, "StoreFullError")
            assert client.deliveries == []
            assert broker.store.pending(A) == []
            await asyncio.sleep(2)
            found = await ask(
                broker, PublishReplayed("r", "0", (*some(1, 3), *some(3, 5, T, qos=0)))
            )
            assert (found.position, found.count, found.problem) == ("4", 4, "")
            assert client.bodies() == bodies(*range(3, 5))
            assert broker.store.pending(A) == bodies(*range(1, 3))
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


def test_a_request_that_is_given_up_is_seen_to_its_end_before_the_next_one() -> None:
    """Its step may still be dropped, and then the position goes back with its messages."""

    async def main() -> None:
        async with Broker() as broker:
            operations = Operations(broker.core)
            await perform(operations, ME, BeginReplay("r", "plan", "0"))
            broker.store.hold()
            broker.store.refuse(1, AddMessage)
            asking = asyncio.create_task(
                perform(operations, ME, PublishReplayed("r", "0", some(1, 4)))
            )
            while not broker.store.waiting:
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            again = asyncio.create_task(
                perform(operations, ME, PublishReplayed("r", "3", some(4, 6)))
            )
            for _ in range(20):
                await asyncio.sleep(0)
            assert not again.done()
            broker.store.release()
            found = await again
            assert isinstance(found, Replay)
            assert (found.position, found.count) == ("0", 0)
            await asyncio.sleep(2)
            found = await ask(broker, PublishReplayed("r", "0", some(1, 6)))
            assert (found.position, found.count) == ("5", 5)
            assert broker.store.pending(A) == bodies(*range(1, 6))

    run(main())


def test_a_store_that_fails_says_so_and_nothing_goes_on(logged_errors: list[str]) -> None:
    logged_errors.append("store=read-only")

    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, BeginReplay("r", "plan", "0"))
            broker.store.error = StoreIOError("broken")
            found = await perform(
                Operations(broker.core), ME, PublishReplayed("r", "0", some(1, 3))
            )
            assert isinstance(found, Replay)
            assert (found.count, found.kind) == (0, "StoreIOError")
            with pytest.raises(StoreError):
                await perform(Operations(broker.core), ME, BeginReplay("other", "plan"))

    run(main())


@pytest.mark.parametrize("overflow", ["slow", "refuse", "drop_oldest", "drop_newest"])
def test_a_full_queue_is_waited_for_and_loses_nothing(overflow: str) -> None:
    async def main() -> None:
        async with Broker(DestinationPolicy(A, messages_max=10, overflow=overflow)) as broker:
            await ask(broker, BeginReplay("r", "plan", "0"))
            found = await ask(broker, PublishReplayed("r", "0", some(1, 31)))
            assert (found.position, found.kind) == ("10", "FlowControlError")
            found = await ask(broker, PublishReplayed("r", "10", some(11, 31)))
            assert (found.count, found.kind) == (10, "FlowControlError")
            assert "full" in found.problem
            client = await broker.client()
            client.acknowledge_at_once()
            client.subscribe(A)
            while found.position != "30":
                await broker.settle()
                at = int(found.position)
                found = await ask(broker, PublishReplayed("r", str(at), some(at + 1, 31)))
            await broker.settle()
            assert client.bodies() == bodies(*range(1, 31))
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


def test_a_step_ends_before_what_cannot_be_published() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await ask(broker, BeginReplay("r", "plan", "0"))
            wrong = some(3, 4, "queue://a.*")
            found = await ask(broker, PublishReplayed("r", "0", (*some(1, 3), *wrong)))
            assert (found.position, found.kind) == ("2", "RequestError")
            assert broker.store.pending(A) == bodies(*range(1, 3))
            with pytest.raises(RequestError, match="no replay 'other'"):
                await ask(broker, PublishReplayed("other", "0", some(1, 2)))

    run(main())


class Guard:
    """Allows what it is told to, and writes down what happened."""

    def __init__(self, allowed: set[tuple[Action, str]]) -> None:
        self.allowed = allowed
        self.events: list[AuditEvent] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if identity.principal != ME.principal or (action, destination) in self.allowed:
            return Verdict.ALLOW
        return Verdict.DENY

    def audit(self, event: AuditEvent) -> None:
        self.events.append(event)


def test_the_acl_is_asked_for_every_destination() -> None:
    async def main() -> None:
        guard = Guard({(Action.ADMIN, ""), (Action.PUBLISH, A), (Action.PUBLISH, T)})
        async with Broker(extensions=[guard]) as broker:
            others = (A, B, T, "topic://secret", "queue://a.*", "topic://$SYS.broker.x", "x")
            found = await ask(broker, AskDestinations(others))
            assert set(found.problems) == set(others) - {T}
            guard.allowed |= {(Action.CREATE, A)}
            assert A not in (await ask(broker, AskDestinations(others))).problems
            await ask(broker, BeginReplay("r", "plan", "0"))
            found = await ask(broker, PublishReplayed("r", "0", (*some(1, 3), *some(3, 5, B))))
            assert (found.position, found.kind) == ("2", "AccessError")
            assert B not in broker.core.destinations.queues
            found = await ask(broker, PublishReplayed("r", "2", some(3, 5, T)))
            assert found.count == 4
            guard.allowed -= {(Action.PUBLISH, A)}  # while it goes on
            found = await ask(broker, PublishReplayed("r", "4", some(5, 7)))
            assert (found.count, found.kind) == (4, "AccessError")
            operated = [e for e in guard.events if e.kind is AuditKind.OPERATED]
            assert (Action.PUBLISH, A) in [(e.action, e.destination) for e in operated]
            guard.allowed -= {(Action.ADMIN, "")}
            for request in (
                BeginReplay("r"),
                PublishReplayed("r", "4", some(5, 7)),
                ForgetReplay("r"),
                AskDestinations((T,)),
            ):
                with pytest.raises(AccessError):
                    await ask(broker, request)

    run(main())


def test_a_replay_that_is_forgotten_begins_anew() -> None:
    async def main() -> None:
        async with Broker() as broker:
            await replay_all(broker, 5)
            await broker.kill()
            assert (await ask(broker, BeginReplay("r"))).is_complete
            assert (await ask(broker, ForgetReplay("r"))).count == 1
            assert (await ask(broker, ForgetReplay("r"))).count == 0
            await broker.kill()
            await replay_all(broker, 5)
            assert broker.store.pending(A) == bodies(*range(1, 6)) * 2

    run(main())


def test_who_may_read_the_gateways_topics_sees_how_far_it_is_and_nobody_else_can_change_it() -> (
    None
):
    async def main() -> None:
        async with Broker() as broker:
            await replay_all(broker, 5)
            client: Client = await broker.client("mqtt")
            topic = "topic://$SYS.broker.replays.r"
            with pytest.raises(AccessError):
                client.send(topic, b"", retain=True)
            client.connection.subscribe(
                SubscribeRequest(
                    key="s",
                    destination=topic,
                    acknowledge=False,
                    retain_handling=RetainHandling.SEND,
                ),
                None,
            )
            await broker.settle()
            ((_, stored),) = client.deliveries
            shown = msgspec.json.decode(stored.message.body)
            assert shown == {"plan": "plan", "position": "5", "count": 5, "is_complete": True}
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())


def test_a_thousand_new_queues_and_many_subscribers_are_gone_over_in_steps() -> None:
    async def main() -> None:
        async with Broker() as broker:
            client = await broker.client()
            for number in range(600):
                client.subscribe(T, f"s{number}", acknowledge=False)
            await broker.settle()
            await ask(broker, BeginReplay("r", "plan", "0"))
            found = await ask(broker, PublishReplayed("r", "0", some(1, 41, T)))
            assert found.count == 40
            assert len(broker.store.operations(SetRetained)) > 2, (
                "one turn is given no more than TURN_WORK_MAX deliveries"
            )
            await broker.settle()
            assert client.bodies("s7") == bodies(*range(1, 41))
            queues = tuple(ReplayedMessage(str(n), f"queue://q{n}", b"x") for n in range(41, 1041))
            found = await ask(broker, PublishReplayed("r", "40", queues))
            assert found.count == 1040
            client.connection.disconnect(graceful=True)
            await broker.settle()

    run(main())
