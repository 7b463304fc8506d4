"""Prepared branches: durable and invisible, completed once, by whoever has the right to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from broker_harness import Broker, Client

from tidegate.broker.turn.shortage import FULL_BACK_OFF_S
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    FlowControlError,
    Message,
    Move,
    PutBranch,
    RemoveBranch,
    RequestError,
    StoreCapabilities,
    StoredMessage,
    StoreFullError,
    StoreIOError,
)
from tidegate.testing.memory_store import MemoryContents, MemoryStore

ONE = BranchId(1, b"one", b"q", "anonymous")
TWO = BranchId(1, b"two", owner="anonymous")


async def prepared(
    broker: Broker, branch_id: BranchId = ONE, *, acknowledge: bool = True
) -> Client:
    """A branch that sends "a" and "b" to queue://out and acknowledged 1 of 3 in queue://in."""
    client = await broker.client()
    if acknowledge:
        for number in range(3):
            client.send("queue://in", f"{number}")
        client.subscribe("queue://in")
        await broker.settle()
    client.connection.begin("t")
    if acknowledge:
        client.connection.acknowledge("s", client.sequences()[:1], None, "t")
    client.send("queue://out", "a", transaction="t")
    client.send("queue://out", "b", transaction="t")
    client.connection.prepare("t", branch_id, "prepared")
    await broker.settle()
    assert client.confirmations[-1] == "prepared"
    return client


async def reader_of(broker: Broker, destination: str) -> Client:
    reader = await broker.client()
    reader.subscribe(destination)
    await broker.settle()
    return reader


async def test_preparing_is_one_batch_and_nothing_of_it_can_be_seen() -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        (batch,) = [b for b in broker.store.batches if any(type(o) is PutBranch for o in b)]
        assert [type(op) for op in batch[-3:]] == [PutBranch, AddMessage, AddMessage]
        reader = await reader_of(broker, "queue://out")
        assert reader.bodies() == []
        (branch,) = client.connection.branches()
        assert (branch.branch_id, branch.state) == (ONE, BranchState.PREPARED)
        assert [item.sequences for item in branch.locked] == [(1,)]
        with pytest.raises(RequestError, match="no open transaction"):
            client.connection.commit("t")
        # The client is gone: what is locked stays locked, the rest goes to others.
        client.connection.disconnect(graceful=False)
        other = await reader_of(broker, "queue://in")
        assert other.bodies() == [b"1", b"2"]
        assert broker.store.pending("queue://in") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("selects", [False, True])
async def test_a_commit_makes_it_visible_once_and_consumes_what_was_acknowledged(
    is_killed: bool, selects: bool
) -> None:
    async with Broker() as broker:
        client = await broker.client()
        for number in range(3):
            client.send("queue://in", f"{number}", headers=(("n", "1"),))
        client.subscribe("queue://in", selector="n = '1'" if selects else "")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences()[1:2], None, "t")
        for body in "ab":
            client.send("queue://out", body, transaction="t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        if is_killed:
            await broker.kill()
        manager = await broker.client()
        reader = await reader_of(broker, "queue://out")
        manager.send("queue://out", "between")
        await broker.settle()
        broker.store.batches.clear()
        manager.connection.commit_branch(ONE, "committed")
        await broker.settle()
        (batch,) = broker.store.batches
        assert [type(op) for op in batch] == [
            AddMessage,
            AddMessage,
            Acknowledge,
            RemoveBranch,
        ]
        assert manager.confirmations[-1] == "committed"
        assert reader.bodies() == [b"between", b"a", b"b"]  # in order of commit
        assert broker.store.pending("queue://in") == [b"0", b"2"]
        assert broker.contents.branches == {}
        with pytest.raises(RequestError, match="no prepared branch"):
            manager.connection.commit_branch(ONE)
        await broker.kill()
        again = await reader_of(broker, "queue://in")
        assert again.bodies() == [b"0", b"2"]
        assert (await reader_of(broker, "queue://out")).bodies() == [b"between", b"a", b"b"]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_roll_back_delivers_what_was_acknowledged_again(is_killed: bool) -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        if is_killed:
            await broker.kill()
        else:
            client.connection.disconnect(graceful=True)
        reader = await reader_of(broker, "queue://in")
        assert reader.bodies() == [b"1", b"2"]
        reader.connection.roll_back_branch(ONE, "rolled back")
        await broker.settle()
        assert reader.confirmations[-1] == "rolled back"
        assert reader.bodies() == [b"1", b"2", b"0"]
        assert reader.counts()[-1] == 1
        assert broker.contents.branches == {}
        assert (await reader_of(broker, "queue://out")).bodies() == []
        reader.ack_all()
        await broker.settle()
        assert broker.store.pending("queue://in") == []


async def test_rejected_messages_go_to_the_dead_letter_queue_with_the_commit() -> None:
    policy = DestinationPolicy("queue://>", max_deliveries=1)
    async with Broker(policy) as broker:
        client = await broker.client()
        client.send("queue://in", "0")
        client.send("queue://in", "1")
        client.subscribe("queue://in")
        await broker.settle()
        client.connection.begin("t")
        client.connection.reject("s", client.sequences(), None, "t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        assert broker.store.operations(Move) == []
        await broker.kill()
        manager = await broker.client()
        manager.connection.commit_branch(ONE, "done")
        await broker.settle()
        assert manager.confirmations == ["done"]
        assert len(broker.store.operations(Move)) == 2
        assert broker.store.pending("queue://in") == []


async def test_rejected_messages_below_the_limit_are_delivered_again_with_the_commit() -> None:
    async with Broker(DestinationPolicy("queue://>", max_deliveries=5)) as broker:
        client = await broker.client()
        client.send("queue://in", "0")
        client.subscribe("queue://in")
        await broker.settle()
        client.connection.begin("t")
        client.connection.reject("s", client.sequences(), None, "t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        assert client.bodies() == [b"0"]
        client.connection.commit_branch(ONE, "done")
        await broker.settle()
        assert client.bodies() == [b"0", b"0"]
        assert client.counts() == [0, 1]


async def test_a_branch_outlives_the_subscription_it_consumed_from() -> None:
    async with Broker() as broker:
        client = await broker.client("stomp", "c")
        client.subscribe("topic://t", durable_name="d")
        client.send("topic://t", "0")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.send("queue://out", "a", transaction="t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        client.connection.unsubscribe("s", forget=True)
        await broker.settle()
        client.connection.commit_branch(ONE, "done")
        await broker.settle()
        assert client.confirmations == ["done"]
        assert broker.store.pending("queue://out") == [b"a"]
        assert broker.store.operations(Acknowledge) == []


async def test_what_is_not_stored_is_delivered_again_after_a_roll_back() -> None:
    async with Broker() as broker:
        client = await broker.client()
        destination = client.connection.make_temporary("queue://answers")
        client.subscribe(destination)
        client.send(destination, "0")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.connection.prepare("t", ONE)
        await broker.settle()
        assert client.connection.branches()[0].locked == ()
        client.connection.roll_back_branch(ONE, "done")
        await broker.settle()
        assert client.bodies() == [b"0", b"0"]
        client.connection.disconnect(graceful=True)
        await broker.settle()


# --- failures -------------------------------------------------------------------------------------


async def test_a_full_store_rolls_back_what_it_cannot_prepare() -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.send("queue://in", "0")
        client.subscribe("queue://in")
        await broker.settle()
        client.connection.begin("t")
        client.connection.acknowledge("s", client.sequences(), None, "t")
        client.send("queue://out", "a", transaction="t", duplicate_id="d")
        broker.store.refuse(1)
        client.connection.prepare("t", ONE, "prepared")
        await broker.settle()
        ((token, error),) = client.failures
        assert token == "prepared"
        assert isinstance(error, StoreFullError)
        assert client.connection.branches() == []
        assert list(client.connection.consumers["s"].in_flight) == [1]
        await asyncio.sleep(FULL_BACK_OFF_S + 0.01)
        client.send("queue://out", "b", "sent", duplicate_id="d")
        await broker.settle()
        assert client.confirmations == ["sent"]


async def test_a_full_store_leaves_the_branch_prepared_and_the_commit_may_be_repeated() -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        reader = await reader_of(broker, "queue://out")
        broker.store.refuse(1)
        client.connection.commit_branch(ONE, "first")
        await broker.settle()
        ((token, error),) = client.failures
        assert token == "first"
        assert isinstance(error, StoreFullError)
        assert reader.bodies() == []
        assert broker.store.pending("queue://in") == [b"0", b"1", b"2"]
        with pytest.raises(StoreFullError):
            client.connection.commit_branch(ONE)
        await asyncio.sleep(FULL_BACK_OFF_S + 0.01)
        client.connection.commit_branch(ONE, "second")
        await broker.settle()
        assert client.confirmations[-1] == "second"
        assert reader.bodies() == [b"a", b"b"]
        assert broker.store.pending("queue://in") == [b"1", b"2"]


async def check_commits_when_it_is_mended(
    broker: Broker, client: Client, mend: Callable[[], None]
) -> None:
    """A commit that fails leaves the branch as it was, and what was wrong may go away."""
    client.connection.commit_branch(ONE, "first")
    await broker.settle()
    assert [token for token, _ in client.failures] == ["first"]
    assert broker.store.pending("queue://out") == []
    mend()
    client.connection.commit_branch(ONE, "second")
    await broker.settle()
    assert client.confirmations[-1] == "second"
    assert broker.store.pending("queue://out") == [b"a", b"b"]


async def test_a_branch_whose_messages_cannot_be_read_stays_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker() as broker:
        client = await prepared(broker)

        async def broken(*_: object) -> list[StoredMessage]:
            raise StoreIOError("cannot read")

        monkeypatch.setattr(broker.store, "page_in", broken)
        await check_commits_when_it_is_mended(broker, client, monkeypatch.undo)


async def test_a_commit_that_fails_half_way_leaves_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        publish = broker.core.publisher.publish

        def once(message: Message, *rest: object) -> object:
            if message.body == b"b":
                raise FlowControlError("a subscription is full")
            return publish(message, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.core.publisher, "publish", once)
        await check_commits_when_it_is_mended(broker, client, monkeypatch.undo)


async def test_a_branch_cannot_be_completed_twice_at_a_time() -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        client.connection.commit_branch(ONE, "first")
        with pytest.raises(RequestError, match="being prepared or completed"):
            client.connection.roll_back_branch(ONE)
        await broker.settle()
        assert client.confirmations[-1] == "first"


# --- who may, and how many ------------------------------------------------------------------------


async def test_only_the_principal_who_prepared_a_branch_sees_and_completes_it() -> None:
    contents = MemoryContents()
    theirs = msgspec.structs.replace(ONE, owner="manager")
    stored = Branch(theirs, prepared_at=5)
    contents.branches[theirs] = stored
    async with Broker(contents=contents) as broker:
        client = await broker.client()
        assert client.connection.branches() == []
        for call in ("commit_branch", "roll_back_branch", "forget_branch"):
            with pytest.raises(RequestError, match="there is no prepared branch"):
                getattr(client.connection, call)(ONE)
        assert broker.core.branches.all_of() == [stored]
        client.connection.begin("t")
        client.connection.prepare("t", theirs, "done")  # nobody's id keeps another from it
        await broker.settle()
        assert client.confirmations == ["done"]
        assert [item.branch_id for item in client.connection.branches()] == [ONE]


async def test_ids_and_limits_are_checked_and_the_transaction_stays_open() -> None:
    async with Broker(prepared_branches_max=1) as broker:
        client = await prepared(broker, acknowledge=False)
        client.connection.begin("t")
        with pytest.raises(RequestError, match="already exists"):
            client.connection.prepare("t", ONE)
        with pytest.raises(FlowControlError, match="prepared_branches_max"):
            client.connection.prepare("t", TWO)
        with pytest.raises(RequestError, match="1 to 64 bytes"):
            client.connection.prepare("t", BranchId(1, b""))
        with pytest.raises(RequestError, match="no open transaction"):
            client.connection.prepare("u", TWO)
        client.connection.abort("t")
        with pytest.raises(RequestError, match="in doubt"):
            client.connection.forget_branch(ONE)
        with pytest.raises(RequestError, match="no prepared branch"):
            client.connection.roll_back_branch(TWO)


async def test_what_may_be_gone_at_the_commit_cannot_be_prepared() -> None:
    async with Broker() as broker:
        client = await broker.client()
        destination = client.connection.make_temporary("queue://answers")
        client.connection.begin("t")
        client.send(destination, "a", transaction="t")
        with pytest.raises(RequestError, match="temporary"):
            client.connection.prepare("t", ONE)
        client.connection.disconnect(graceful=True)
        await broker.settle()


async def test_a_store_that_cannot_keep_branches_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", StoreCapabilities(durable=True))

    async with Broker() as broker:
        client = await broker.client()
        client.connection.begin("t")
        with pytest.raises(RequestError, match="cannot keep"):
            client.connection.prepare("t", ONE)


# --- duplicate ids --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("commits", [False, True])
async def test_the_ids_of_a_branch_are_in_doubt_with_it(is_killed: bool, commits: bool) -> None:
    async with Broker() as broker:
        client = await broker.client()
        client.connection.begin("t")
        client.send("queue://out", "a", transaction="t", duplicate_id="d")
        client.connection.prepare("t", ONE)
        await broker.settle()
        if is_killed:
            await broker.kill()
            client = await broker.client()
        with pytest.raises(RequestError, match="prepared transaction 1:6f6e65:71"):
            client.send("queue://out", "b", duplicate_id="d")
        client.connection.begin("u")
        client.send("queue://out", "b", transaction="u", duplicate_id="d")
        with pytest.raises(RequestError, match="prepared transaction"):
            client.connection.prepare("u", TWO)
        if commits:
            client.connection.commit_branch(ONE)
        else:
            client.connection.roll_back_branch(ONE)
        await broker.settle()
        client.send("queue://out", "b", duplicate_id="d")
        await broker.settle()
        assert broker.store.pending("queue://out") == [b"a" if commits else b"b"]
        await broker.kill()
        client = await broker.client()
        client.send("queue://out", "c", duplicate_id="d")
        await broker.settle()
        assert broker.store.pending("queue://out") == [b"a" if commits else b"b"]


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [False, True])
async def test_what_an_operator_decided_is_remembered_until_the_manager_forgets_it(
    commits: bool,
) -> None:
    async with Broker() as broker:
        client = await prepared(broker)
        operator = await broker.client()
        broker.core.branches.complete(
            ONE, operator.connection, "done", commit=commits, heuristic=True
        )
        await broker.settle()
        assert operator.confirmations == ["done"]
        expected = BranchState.COMMITTED if commits else BranchState.ROLLED_BACK
        for _ in range(2):
            (branch,) = client.connection.branches()
            assert (branch.state, branch.locked, branch.pending_list) == (expected, (), 0)
            assert branch.completed_at >= branch.prepared_at > 0
            with pytest.raises(RequestError, match="by an operator"):
                client.connection.commit_branch(ONE)
            await broker.kill()
            client = await broker.client()
        assert broker.store.pending("queue://out") == ([b"a", b"b"] if commits else [])
        client.connection.forget_branch(ONE, "forgotten")
        await broker.settle()
        assert client.confirmations == ["forgotten"]
        assert broker.contents.branches == {}
        assert client.connection.branches() == []
