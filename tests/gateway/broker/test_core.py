"""The core: who gets in, what extensions may do, start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from broker_harness import CURSORS, Broker, Client, Core, connect_request, key_of, message
from scripted_store import ScriptedStore

from tidegate.broker.core import MAINTENANCE_INTERVAL_S
from tidegate.broker.lists import selector
from tidegate.broker.publish.access import AUTHORIZATIONS_MAX
from tidegate.config import BrokerConfig, DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    AddMessage,
    ConnectionEndedError,
    Credentials,
    FlowControlError,
    Identity,
    Message,
    Principal,
    StoreLockedError,
    Verdict,
)
from tidegate.testing.memory_store import MemoryContents

# --- who gets in ----------------------------------------------------------------------------------


class Accounts:
    """Knows one user; abstains for clients without a name; may take its time."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.bug: BaseException = RuntimeError("a bug in an extension")
        self.asked: list[Credentials] = []
        self.waiting = 0

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        self.asked.append(credentials)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if not credentials.username:
            return None
        if (credentials.username, credentials.password) == ("ann", b"secret"):
            return Principal("user:ann")
        if credentials.username == "crash":
            raise self.bug
        if credentials.username == "name":
            return cast(Principal, "user:name")
        raise AccessError("wrong user name or password", principal=credentials.username)


async def test_the_first_authenticator_that_does_not_abstain_decides(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("authenticator=")

    first, second = Accounts(), Accounts()
    first.bug = bug
    async with Broker(extensions=[first, second]) as broker:
        client = await broker.client(username="ann", password=b"secret")
        assert client.connection.principal == "user:ann"
        assert second.asked == []
        for name in ("ann", "bob", "crash", "name"):  # a bug refuses, too
            with pytest.raises(AccessError):
                await broker.client(username=name, password=b"wrong")
        with pytest.raises(AccessError):
            await broker.client(anonymous_allowed=False)
        assert len(broker.core.connections) == 1


async def test_a_name_that_nobody_checked_is_not_a_principal() -> None:
    """Authorizers decide by it: who calls himself admin where anybody may come is not admin."""

    async with Broker() as broker:
        client = await broker.client(username="admin")
        assert client.connection.principal == "anonymous"


class Impostor:
    """Says that a client is who it says it is."""

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        expires_at = int(credentials.password or b"0")
        return Principal(credentials.username, expires_at=expires_at)


@pytest.mark.parametrize("name", ["anonymous", ""])
async def test_nobody_is_called_what_the_gateway_calls_clients_that_nobody_knows(
    name: str,
) -> None:
    async with Broker(extensions=[Impostor()]) as broker:
        with pytest.raises(AccessError, match="is not allowed as a user name"):
            await broker.client(username=name)
        assert not broker.core.connections


async def test_a_connection_ends_with_its_credentials() -> None:
    async with Broker(extensions=[Impostor()]) as broker:
        now = broker.core.now()
        soon = await broker.client(username="soon", password=b"%d" % (now + 5_000_000))
        late = await broker.client(username="late", password=b"%d" % (now + 60_000_000))
        ever = await broker.client(username="ever")
        broker.core.step_us += 4_000_000
        await broker.core._maintain_once()
        assert soon.ended is None
        broker.core.step_us += 2_000_000
        await broker.core._maintain_once()
        assert isinstance(soon.ended, AccessError)
        assert late.ended is ever.ended is None


async def test_connections_are_limited_also_when_many_authenticate_at_once() -> None:
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


async def test_of_two_clients_that_authenticate_at_once_under_one_client_id_one_stays() -> None:
    accounts = Accounts()
    async with Broker(extensions=[accounts]) as broker:
        accounts.gate.clear()
        coming = [
            asyncio.ensure_future(broker.client("mqtt", "c", clean_start=False, session_expiry=100))
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
        session = broker.core.sessions.get(key_of("c"))
        assert session is not None
        assert session.connection is two.connection


async def test_a_cancelled_connect_leaves_nothing_and_takes_nothing_over() -> None:
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


async def test_a_client_that_authenticates_while_the_gateway_stops_does_not_get_in() -> None:
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


# --- what extensions may do -----------------------------------------------------------------------


class Rules:
    """Allows by (action, destination) and counts how often it is asked."""

    def __init__(self, allows: Callable[[str, Action, str], bool]) -> None:
        self.allows = allows
        self.asked = 0

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if action is Action.CONNECT:
            return Verdict.ALLOW
        self.asked += 1
        allows = self.allows(identity.principal, action, destination)
        return Verdict.ALLOW if allows else Verdict.DENY


async def test_what_one_authorizer_refuses_is_refused() -> None:
    everything = Rules(lambda *_: True)
    readers = Rules(lambda _who, what, where: what is not Action.PUBLISH or where != "queue://q")
    async with Broker(extensions=[everything, readers]) as broker:
        client = await broker.client("mqtt", "c")
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
        assert broker.store.pending("queue://q") == []


async def test_a_client_that_may_not_connect_takes_nothing_over() -> None:
    class Door:
        is_open = True

        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            assert (identity.address, identity.client_id) == ("127.0.0.1", "c")
            refuses = action is Action.CONNECT and not self.is_open
            return Verdict.DENY if refuses else Verdict.ALLOW

    door = Door()
    async with Broker(extensions=[door]) as broker:
        older = await broker.client("mqtt", "c")
        door.is_open = False
        with pytest.raises(AccessError, match="connect is not allowed"):
            await broker.client("mqtt", "c")
        assert older.ended is None


async def test_a_client_with_a_will_it_may_not_publish_is_refused() -> None:
    readers = Rules(lambda _who, what, where: what is not Action.PUBLISH or where != "queue://q")
    async with Broker(extensions=[readers]) as broker:
        with pytest.raises(AccessError) as refused:
            await broker.client("mqtt", "c", will=message("queue://q", "never"))
        assert refused.value.destination == "queue://q"
        assert not broker.core.connections
        assert len(broker.core.sessions) == 0


async def test_an_answer_is_remembered_for_the_connection_and_the_memory_is_limited() -> None:
    rules = Rules(lambda *_: True)
    async with Broker(extensions=[rules]) as broker:
        client = await broker.client()
        for _ in range(10):
            client.send("topic://t", "m")
        assert rules.asked == 1
        for number in range(AUTHORIZATIONS_MAX + 10):
            client.send(f"topic://t.{number}", "m")
        assert len(client.connection.rights.publishable) <= AUTHORIZATIONS_MAX
        other = await broker.client()
        asked = rules.asked
        other.send("topic://t", "m")
        assert rules.asked == asked + 1


class Stamp:
    """Adds a header; refuses one body; sends another elsewhere; crashes on a third; answers a
    fourth with nothing."""

    bug: BaseException

    def intercept(self, message: Message, principal: str) -> Message:
        if message.body == b"refused":
            raise AccessError("not this", principal=principal, destination=message.destination)
        if message.body == b"crash":
            raise self.bug
        if message.body == b"forgotten":
            return cast(Message, None)
        if message.body == b"elsewhere":
            return msgspec.structs.replace(message, destination="queue://elsewhere")
        return msgspec.structs.replace(message, headers=(("seen-by", principal),))


async def test_an_interceptor_may_change_redirect_or_refuse_a_publish(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("interceptor=")
    stamp = Stamp()
    stamp.bug = bug

    async with Broker(extensions=[stamp]) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        client.send("queue://q", "elsewhere")
        for body in ("refused", "crash", "forgotten"):
            with pytest.raises(AccessError):
                client.send("queue://q", body)
        await broker.settle()
        assert client.bodies() == [b"m"]
        assert client.deliveries[0][1].message.headers == (("seen-by", "anonymous"),)
        assert broker.store.pending("queue://elsewhere") == [b"elsewhere"]


async def test_an_authorizer_that_crashes_refuses(
    bug: BaseException, logged_errors: list[str]
) -> None:
    logged_errors.append("authorizer=")

    def crash(*_args: object) -> bool:
        raise bug

    async with Broker(extensions=[Rules(crash)]) as broker:
        client = await broker.client()
        with pytest.raises(AccessError):
            client.send("queue://q", "m")
        with pytest.raises(AccessError):
            client.subscribe("queue://q")


# --- destinations ---------------------------------------------------------------------------------


async def test_queues_are_limited_and_rejected_messages_are_then_redelivered() -> None:
    async with Broker(DestinationPolicy(match=">", max_deliveries=1), queues_max=1) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        with pytest.raises(FlowControlError, match=r"limit \(broker.queues_max\)"):
            client.send("queue://r", "m")
        with pytest.raises(FlowControlError, match=r"limit \(broker.queues_max\)"):
            client.subscribe("queue://r", "r")
        await broker.settle()
        client.connection.reject("s", [1], "rejected")  # no dead-letter queue can be made
        await broker.settle()
        assert client.confirmations == ["rejected"]
        assert client.counts() == [0, 1]


@pytest.mark.parametrize(("stored", "floor", "next_one"), [(0, 500, 500), (900, 500, 901)])
async def test_sequences_begin_above_what_is_stored_and_not_below_the_floor(
    stored: int, floor: int, next_one: int
) -> None:
    """Messages that nobody stores take sequences, too; the floor keeps those from coming again."""

    broker = Broker(contents=MemoryContents(last_sequence=stored))
    broker.sequence_floor = floor
    async with broker:
        client = await broker.client()
        client.subscribe("topic://t", acknowledge=False)
        client.send("topic://t", "m")
        await broker.settle()
        assert client.sequences() == [next_one]


async def test_sequences_and_list_ids_go_on_after_a_restart() -> None:
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
        known = broker.contents.destinations.values()
        assert sorted(found.pending_list for found in known) == [1, 2, 3]


async def test_queues_from_before_the_start_count() -> None:
    async with Broker(queues_max=3) as broker:
        client = await broker.client()
        for name in "abc":
            client.send(f"queue://{name}", "m")
        await broker.settle()
        counted = broker.core.held()
        await broker.kill()
        for metric in ("counted.queues", "held.queues.bytes"):
            assert broker.core.held()[metric] == counted[metric] > 0
        client = await broker.client()
        client.send("queue://a", "m")
        with pytest.raises(FlowControlError, match=r"broker.queues_max"):
            client.send("queue://d", "m")


# --- start and stop -------------------------------------------------------------------------------


async def test_stopping_confirms_what_was_accepted_then_tells_the_clients_then_closes_the_store() -> (
    None
):
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


async def test_stopping_closes_the_store_also_when_the_connections_were_ended_before() -> None:
    async with Broker() as broker:
        client = await broker.client()
        await broker.core.end_connections()
        assert client.ended is not None
        assert not broker.store.is_closed
        await broker.core.end_connections()
        await broker.core.stop()
        assert broker.store.is_closed
        assert all(task.done() for task in broker.core.tasks.running)
        await broker.core.stop()


async def test_stopping_does_not_first_empty_a_queue_into_an_automatic_consumer() -> None:
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


async def test_stopping_returns_what_was_in_flight() -> None:
    contents = MemoryContents()
    async with Broker(contents=contents) as broker:
        client = await broker.consumer("queue://q", "m")
    async with Broker(contents=contents) as broker:
        client = await broker.consumer()
        assert (client.bodies(), client.counts()) == ([b"m"], [1])


async def test_wills_are_published_when_the_gateway_stops_because_nobody_said_goodbye() -> None:
    async with Broker() as broker:
        watcher = await broker.client("stomp", "w")
        watcher.subscribe("topic://w", durable_name="d")
        await broker.client("mqtt", "c", will=message("topic://w", "gone"))
        await broker.core.stop()
        assert [m.body for m in _all_messages(broker)] == [b"gone"]


def _all_messages(broker: Broker) -> list[Message]:
    return [stored.message for held in broker.contents.lists.values() for stored in held.values()]


async def test_a_store_that_cannot_be_opened_ends_the_start() -> None:
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


async def test_the_broker_says_who_it_is() -> None:
    async with Broker(name="shop") as broker:
        assert (broker.core.name, broker.core.version) == ("shop", "0")
        assert broker.core.store_id == broker.contents.store_id
        result = await broker.core.connect(connect_request(), Client())
        assert not result.session_present
        assert list(result.inflight) == []


async def test_what_the_first_selector_needs_is_built_in_a_thread_behind_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[float] = []
    loop = asyncio.get_running_loop()
    in_thread = loop.run_in_executor

    def run_in_executor(executor: Any, act: Callable[..., object], *args: Any) -> Any:
        threads.append(loop.time())
        return in_thread(executor, act, *args)

    threads: list[float] = []
    monkeypatch.setattr(selector, "prepare", lambda: built.append(loop.time()))
    monkeypatch.setattr(loop, "run_in_executor", run_in_executor)
    async with Broker() as broker:
        begin = loop.time()
        assert not built
        await asyncio.sleep(MAINTENANCE_INTERVAL_S)
        await broker.settle()
    assert built == [begin + MAINTENANCE_INTERVAL_S]
    assert built[0] in threads
