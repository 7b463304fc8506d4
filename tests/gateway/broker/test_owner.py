"""What a client keeps is its principal's: another one may say the same client id, and finds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from broker_harness import Broker, Client, key_of, message

from tidegate.broker import owner
from tidegate.broker.limits.accounts import Counted
from tidegate.broker.operate.operations import Operations
from tidegate.broker.owner import client_key
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    BranchId,
    ConnectionEndedError,
    Credentials,
    Identity,
    InflightDirection,
    InflightRecord,
    InflightState,
    Principal,
    RemoveSession,
    RetainHandling,
)
from tidegate.spi.operate import CreateDestination, DeleteDestination

STORED: dict[str, Any] = {"clean_start": False, "session_expiry": 1000}


class Users:
    """Everybody is who they say they are; without a name one is anonymous."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(credentials.username) if credentials.username else None


def gateway() -> Broker:
    return Broker(extensions=[Users()])


async def connect(
    broker: Broker, user: str, client_id: str = "c", protocol: str = "mqtt", **more: Any
) -> Client:
    return await broker.client(protocol, client_id, username=user, **more)


async def leave(broker: Broker, *clients: Client) -> None:
    for client in clients:
        client.connection.disconnect(graceful=True)
    await broker.settle()


async def publish(broker: Broker, *bodies: str, destination: str = "topic://t") -> None:
    sender = await broker.client()
    for body in bodies:
        sender.send(destination, body, qos=1)
    await broker.settle()
    await leave(broker, sender)


@pytest.fixture(params=["goes on", "is killed"])
def goes_on(request: pytest.FixtureRequest) -> bool:
    """Whether the gateway goes on, or is killed and starts again."""
    return request.param == "goes on"


async def pass_by(broker: Broker, goes_on: bool) -> None:
    await broker.settle()
    if not goes_on:
        await broker.kill()


# --- the key --------------------------------------------------------------------------------------


def test_a_key_tells_protocol_owner_and_client_id_apart_whatever_their_characters() -> None:
    names = ["", "a", "b", "ab", "a\0b", "\0", "ä", "a:b", "x" * 70_000]
    keys = {client_key(p, o, c) for p in names for o in names for c in names if c}
    assert len(keys) == len(names) ** 2 * (len(names) - 1)
    assert {len(key) for key in keys} == {22}
    assert client_key("mqtt", "ann", "") == ""


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["mqtt", "stomp"])
async def test_only_a_connection_of_the_same_principal_takes_over(protocol: str) -> None:
    async with gateway() as broker:
        anns, bobs = [await connect(broker, user, "c", protocol) for user in ("ann", "bob")]
        nobodys = await connect(broker, "", "c", protocol)
        assert [client.ended for client in (anns, bobs, nobodys)] == [None] * 3
        await connect(broker, "ann", "c", protocol)
        assert isinstance(anns.ended, ConnectionEndedError)
        assert (bobs.ended, nobodys.ended) == (None, None)
        await connect(broker, "", "c", protocol)
        assert nobodys.ended is not None  # all that nobody knows are one owner


# --- sessions -------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["owned", "not owned"])
def is_owned(request: pytest.FixtureRequest) -> Iterator[bool]:
    """False: the key says nothing of the owner, and the attack succeeds."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:
            patch.setattr(owner, "client_key", lambda protocol, _, client: protocol + client)
        yield request.param


@pytest.mark.parametrize("clean", [False, True])
async def test_nobody_takes_up_ends_or_reads_the_session_of_another(
    is_owned: bool, clean: bool, goes_on: bool
) -> None:
    async with gateway() as broker:
        hers = await connect(broker, "ann", **STORED)
        hers.subscribe("topic://t", "t", durable_name="t", qos=1)
        await leave(broker, hers)
        await publish(broker, "for ann")
        await pass_by(broker, goes_on)

        his = await connect(broker, "bob", **{**STORED, "clean_start": clean})
        await broker.settle()
        assert his.result.session_present is (not is_owned and not clean)
        assert his.bodies() == ([] if is_owned or clean else [b"for ann"])
        await leave(broker, his)
        await pass_by(broker, goes_on)

        again = await connect(broker, "ann", **STORED)
        await broker.settle()
        assert again.result.session_present
        assert again.bodies() == ([b"for ann"] if is_owned or not clean else [])


async def test_a_session_that_ends_leaves_that_of_the_other_alone(goes_on: bool) -> None:
    async with gateway() as broker:
        clients = [await connect(broker, user, **STORED) for user in ("ann", "bob")]
        for client in clients:
            client.subscribe("topic://t", "t", durable_name="t", qos=1)
        await leave(broker, *clients)
        await publish(broker, "m")
        await pass_by(broker, goes_on)
        his = await connect(broker, "bob", clean_start=True)
        await leave(broker, his)
        assert broker.store.operations(RemoveSession) == [RemoveSession(key_of("c", "bob"))]
        assert list(broker.contents.sessions) == [key_of("c", "ann")]
        await pass_by(broker, goes_on)
        hers = await connect(broker, "ann", **STORED)
        await broker.settle()
        assert hers.bodies() == [b"m"]


async def test_packet_ids_of_one_are_not_those_of_another(goes_on: bool) -> None:
    def received(user: str, packet_id: int) -> InflightRecord:
        state = InflightState.RECEIVED
        return InflightRecord(key_of("c", user), InflightDirection.IN, packet_id, state)

    async with gateway() as broker:
        clients = [await connect(broker, user, **STORED) for user in ("ann", "bob")]
        for packet_id, client in enumerate(clients, 7):
            assert client.result.session == key_of("c", ["ann", "bob"][packet_id - 7])
            record = received(["ann", "bob"][packet_id - 7], packet_id)
            client.send("queue://q", "m", "t", inflight=record)
        await broker.settle()
        await leave(broker, *clients)
        await pass_by(broker, goes_on)
        for packet_id, user in enumerate(("ann", "bob"), 7):
            again = await connect(broker, user, **STORED)
            assert list(again.result.inflight) == [received(user, packet_id)]


async def test_a_will_is_taken_back_by_its_own_client_only(goes_on: bool) -> None:
    async with gateway() as broker:
        reader = await broker.client()
        hers = await connect(
            broker, "ann", will=message("queue://w", "ann is gone"), will_delay=20, **STORED
        )
        hers.connection.disconnect(graceful=False)
        await pass_by(broker, goes_on)
        his = await connect(broker, "bob", **STORED)
        await leave(broker, his)
        (stored,) = [kept for kept in broker.contents.sessions.values() if kept.owner == "ann"]
        assert stored.will is not None
        again = await connect(broker, "ann", **STORED)
        await leave(broker, again)
        assert [kept.will for kept in broker.contents.sessions.values()] == [None, None]
        if goes_on:
            reader.subscribe("queue://w")
            await broker.settle()
            assert reader.bodies() == []


# --- durable subscriptions ------------------------------------------------------------------------


async def test_a_durable_subscription_is_its_owners(goes_on: bool) -> None:
    async with gateway() as broker:
        hers = await connect(broker, "ann", protocol="stomp")
        hers.subscribe("topic://t", durable_name="news")
        await leave(broker, hers)
        await publish(broker, "for ann")
        await pass_by(broker, goes_on)

        his = await connect(broker, "bob", protocol="stomp")
        assert not his.subscribe("topic://t", durable_name="news")
        await broker.settle()
        assert his.bodies() == []
        hers = await connect(broker, "ann", protocol="stomp")
        assert hers.subscribe("topic://t", durable_name="news")  # and is not in use by him
        await broker.settle()
        assert hers.bodies() == [b"for ann"]
        hers.ack_all("s")
        his.connection.unsubscribe("s", forget=True)
        await leave(broker, hers, his)
        (kept,) = broker.contents.subscriptions.values()
        assert (kept.owner, kept.client_id, kept.name) == ("ann", "c", "news")


async def test_another_filter_under_the_same_name_does_not_end_that_of_another(
    goes_on: bool,
) -> None:
    async with gateway() as broker:
        hers = await connect(broker, "ann", protocol="stomp")
        hers.subscribe("topic://t", durable_name="news")
        await leave(broker, hers)
        await publish(broker, "for ann")
        await pass_by(broker, goes_on)
        his = await connect(broker, "bob", protocol="stomp")
        his.subscribe("topic://other", durable_name="news")
        await leave(broker, his)
        await pass_by(broker, goes_on)
        hers = await connect(broker, "ann", protocol="stomp")
        assert hers.subscribe("topic://t", durable_name="news")
        await broker.settle()
        assert hers.bodies() == [b"for ann"]


async def test_a_stomp_client_finds_nothing_of_its_principals_mqtt_client() -> None:
    async with gateway() as broker:
        mqtt = await connect(broker, "ann", **STORED)
        mqtt.subscribe("topic://t", "t", durable_name="t", qos=1)
        await leave(broker, mqtt)
        await publish(broker, "m")
        stomp = await connect(broker, "ann", protocol="stomp")
        assert not stomp.subscribe("topic://t", "t", durable_name="t")
        await broker.settle()
        assert stomp.bodies() == []


# --- share groups ---------------------------------------------------------------------------------


async def test_share_groups_of_two_principals_are_two(goes_on: bool) -> None:
    async with gateway() as broker:
        anns = [await connect(broker, "ann", name, **STORED) for name in ("one", "two")]
        bobs = await connect(broker, "bob", "one", **STORED)
        for client in (*anns, bobs):
            client.subscribe("topic://t", "s", durable_name="s", qos=1, share_group="g")
        await leave(broker, *anns, bobs)
        await publish(broker, "1", "2")
        await pass_by(broker, goes_on)
        bobs = await connect(broker, "bob", "one", **STORED)
        await broker.settle()
        assert bobs.bodies() == [b"1", b"2"]
        bobs.ack_all("s")
        await leave(broker, bobs)
        anns = [await connect(broker, "ann", name, **STORED) for name in ("one", "two")]
        await broker.settle()
        assert sorted(body for client in anns for body in client.bodies()) == [b"1", b"2"]


async def test_a_message_in_doubt_comes_back_to_the_one_whose_it_is(goes_on: bool) -> None:
    async with gateway() as broker:
        for user in ("ann", "bob"):
            client = await connect(broker, user, **STORED)
            client.subscribe("topic://t", "s", durable_name="s", qos=2, share_group="g")
            sender = await broker.client()
            sender.send("topic://t", f"while {user} is here")
            await broker.settle()
            record = InflightRecord(
                key_of("c", user), InflightDirection.OUT, 5, InflightState.PUBLISHED, "s",
                client.sequences()[-1], 2,
            )  # fmt: skip
            client.connection.record_inflight(put=[record], token="noted")
            await broker.settle()
            unanswered = {"s": client.sequences()[-1:]}
            client.connection.disconnect(graceful=False, unanswered=unanswered)
            await leave(broker, sender)
        await pass_by(broker, goes_on)
        hers = await connect(broker, "ann", **STORED)
        await broker.settle()
        assert hers.bodies() == [b"while ann is here", b"while bob is here"]
        his = await connect(broker, "bob", **STORED)
        await broker.settle()
        assert his.bodies() == [b"while bob is here"]


# --- no local -------------------------------------------------------------------------------------


async def test_no_local_is_about_ones_own_messages_and_not_about_those_of_a_namesake(
    goes_on: bool,
) -> None:
    async with gateway() as broker:
        for user in ("ann", "bob"):
            author = await connect(broker, user)
            author.send(
                f"topic://t.{user}", f"kept by {user}", retain=True, qos=1, client_id="c",
                protocol="mqtt",
            )  # fmt: skip
            await leave(broker, author)
        await pass_by(broker, goes_on)
        hers, his = await connect(broker, "ann"), await connect(broker, "bob")
        send = RetainHandling.SEND
        hers.subscribe("topic://t.*", qos=1, no_local=True, retain_handling=send)
        for client in (hers, his):
            client.send("topic://t.x", "live", qos=1, client_id="c", protocol="mqtt")
        await broker.settle()
        assert sorted(hers.bodies()) == [b"kept by bob", b"live"]


async def test_overlapping_subscriptions_of_namesakes_both_get_a_message() -> None:
    async with gateway() as broker:
        clients = [await connect(broker, user, **STORED) for user in ("ann", "bob")]
        for client in clients:
            for topic in ("topic://t", "topic://*"):
                client.subscribe(topic, topic, durable_name=topic, qos=1)
        await publish(broker, "m")
        assert [client.bodies() for client in clients] == [[b"m"], [b"m"]]


async def test_a_queue_counts_for_who_made_it_in_whatever_way(goes_on: bool) -> None:
    rejecting = DestinationPolicy(match="queue://sent", max_deliveries=1)
    async with Broker(rejecting, extensions=[Users()]) as broker:
        dying = await connect(broker, "ann", "dying", will=message("queue://will", "x", qos=1))
        ann = await connect(broker, "ann", **STORED)
        ann.subscribe("queue://>", "all", durable_name="all")  # makes none, now or later
        ann.subscribe("queue://subscribed", "one", durable_name="one", qos=1)
        ann.send("queue://sent", "x", qos=1)
        for transaction in ("aborted", "prepared"):
            ann.connection.begin(transaction)
            ann.send(f"queue://{transaction}", "x", transaction=transaction)
        ann.connection.abort("aborted")
        ann.connection.prepare("prepared", BranchId(1, b"one"))
        dying.connection.disconnect(graceful=False)
        temporary = ann.connection.make_temporary("queue://answers")
        ann.send(temporary, "x")
        await broker.settle()
        ann.connection.reject("all", ann.sequences("all")[:1])
        bob = await connect(broker, "bob")
        bob.send("queue://sent", "x")
        bob.send("queue://his", "x")
        await broker.settle()
        made = dict.fromkeys(("will", "subscribed", "sent", "aborted", "prepared"), "ann")
        known = broker.contents.destinations.values()
        found = {item.destination.removeprefix("queue://"): item.owner for item in known}
        assert found == {**made, "his": "bob", "DLQ.sent": ""}
        assert counted(broker) == (6, 1, 8)  # her temporary queue, too
        await leave(broker, ann, bob)
        await pass_by(broker, goes_on)
        assert counted(broker) == (5, 1, 7)


async def test_a_queue_that_is_deleted_counts_no_more(goes_on: bool) -> None:
    """Who makes it anew has it, and what an operator makes is nobody's."""
    operator = Identity("local:me", frozenset(), "", "", "operator")
    async with gateway() as broker:
        for user in ("ann", "bob"):
            client = await connect(broker, user)
            client.send("queue://a", "x")
            client.send(f"queue://of.{user}", "x")
            await leave(broker, client)
            assert counted(broker) == {"ann": (2, 0, 2), "bob": (2, 1, 3)}[user]
        operations = Operations(broker.core)
        await operations.delete_destination(
            operator, DeleteDestination("queue://a", with_messages=True)
        )
        await operations.create_destination(operator, CreateDestination("queue://ready"))
        await pass_by(broker, goes_on)
        assert counted(broker) == (1, 1, 3)
        client = await connect(broker, "bob")
        client.send("queue://a", "x")
        client.send("queue://ready", "x")
        await leave(broker, client)
        await pass_by(broker, goes_on)
        assert counted(broker) == (1, 2, 4)


def counted(broker: Broker) -> tuple[int, int, int]:
    """Queues of ann, of bob, and of all together with the gateway's."""
    of = broker.core.accounts.of
    ann, bob, gateway = (of(user).counts[Counted.QUEUES] for user in ("ann", "bob", ""))
    return ann, bob, gateway
