"""A rule-based state machine that drives a message store beside the reference."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.spi import (
    Acknowledge,
    AcknowledgedLog,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    ClearRetained,
    Discard,
    DiscardReason,
    Durability,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    LockedMessages,
    Message,
    MessageStore,
    MessageStoreFactory,
    Move,
    Operation,
    Outcome,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RemoveBranch,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    RequestError,
    Session,
    SetRetained,
    StoreCapabilities,
    StoreContext,
    Subscription,
    WriteBatch,
)
from tidegate.testing._harness import close, end_loop
from tidegate.testing._portable_contents import told
from tidegate.testing.memory_store import MemoryContents, MemoryStore

#: Few and short enough for a disk that syncs slowly; each example opens its own store.
STORE_MACHINE_SETTINGS: Final = settings(
    max_examples=settings().max_examples // 4,  # 25, unless a profile has more or fewer
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
    database=None,  # leaves no directory where the kit is run
)

_ANY_SIZE: Final = 1 << 40
_LISTS_MAX: Final = 6
_T = TypeVar("_T")

_bodies: Final = st.one_of(
    st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: b"\xa5" * size)
)
#: What batches consist of, everyday operations more often than rare ones.
_kinds: Final = st.sampled_from(
    ["add_messages", "acknowledge"] * 4
    + ["discard", "move", "record_delivery"] * 2
    + ["add_destination", "remove_destination", "remove_subscription", "change_subscription"]
    + ["add_subscription", "retain", "session", "inflight"]
    + ["prepare", "complete", "duplicate_id", "duplicate_id"]
)
_clients: Final = st.sampled_from(["", "a", "b"])
_topics: Final = st.sampled_from(["topic://t", "topic://u.v"])


class StoreHangsError(BaseException):
    """Its ``close()`` hangs. Not an Exception: hypothesis would repeat the example, and wait each time."""


class StoreMachine(RuleBasedStateMachine):
    """Writes random batches to both stores, which must agree after each.

    ``lists`` runs ahead of the stores while a batch is drawn: it says what will be pending when
    the batch is written, so that only operations allowed by the contract are drawn.
    """

    def __init__(
        self,
        factory: MessageStoreFactory,
        options: object,
        directory: Path,
        capabilities: StoreCapabilities,
    ) -> None:
        super().__init__()
        self.factory = factory
        self.options = options
        self.context = StoreContext(directory, "machine", keep_acknowledged=True)
        self.capabilities = capabilities
        self.contents = MemoryContents()
        self.runner = asyncio.Runner()
        self.batch: list[Operation] = []
        self.lists: dict[int, list[int]] = {}
        self.destinations: dict[str, int] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.branches: dict[BranchId, Branch] = {}
        self.last_sequence = 0
        self.last_list = 0
        self.released = 0
        self.store: MessageStore
        self.reference: MemoryStore
        self.open_stores: list[MessageStore] = []
        self._open()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(60):
                return await coroutine

        return self.runner.run(bounded())

    def _open(self) -> None:
        self.store = self.factory.create(self.context, self.options)
        self.reference = MemoryStore(self.context, self.contents)
        self.open_stores = [self.reference, self.store]
        found, expected = (self._run(self._opened(store)) for store in (self.store, self.reference))
        assert found == {key: expected[key] for key in found}

    async def _opened(self, store: MessageStore) -> dict[str, object]:
        return await told(store, await store.open())

    def _log(self) -> AcknowledgedLog:
        log = self.store.capabilities.acknowledged_log
        assert log is not None
        return log

    # ----------------------------------------------------------------------- drawing operations

    def _draw_add_destination(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(["queue://q", "queue://r", "topic://t"]), "destination")
        paused = data.draw(
            st.sampled_from([(False, False), (True, False), (False, True)]), "paused"
        )
        owner = data.draw(_clients, "owner")
        if name in self.destinations:  # new attributes, the same list
            self.batch.append(AddDestination(name, self.destinations[name], owner, *paused))
            return
        number = 0
        if name.startswith("queue://"):
            number = self.last_list = self.last_list + 1
            self.lists[number] = []
        self.destinations[name] = number
        self.batch.append(AddDestination(name, number, owner, *paused))

    def _draw_remove_destination(self, data: st.DataObject) -> None:
        if not self.destinations:
            return
        name = data.draw(st.sampled_from(sorted(self.destinations)), "destination")
        number = self.destinations.pop(name)
        if number and data.draw(st.booleans(), "what it holds has yet to leave"):
            self._put(Subscription(number, "", "", name, False, ended="it was deleted"))
            self.batch.append(RemoveDestination(name, 0))
            return
        self.lists.pop(number, None)
        self.batch.append(RemoveDestination(name, number))

    def _draw_add_subscription(self, data: st.DataObject) -> None:
        if len(self.lists) >= _LISTS_MAX:
            return
        number = self.last_list = self.last_list + 1
        self.lists[number] = []
        client_id, topic = data.draw(_clients), data.draw(_topics)
        durable = data.draw(st.booleans(), "durable")
        session = data.draw(st.sampled_from(["", client_id]), "session")
        self._put(Subscription(number, client_id, f"s{number}", topic, durable, session=session))

    def _draw_change_subscription(self, data: st.DataObject) -> None:
        if not self.subscriptions:
            return
        number = data.draw(st.sampled_from(sorted(self.subscriptions)), "list")
        old = self.subscriptions[number]
        qos = data.draw(st.integers(0, 2), "qos")
        self._put(msgspec.structs.replace(old, qos=qos, no_local=True))

    def _put(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.pending_list] = subscription
        self.batch.append(PutSubscription(subscription))

    def _draw_remove_subscription(self, data: st.DataObject) -> None:
        if not self.subscriptions:
            return
        number = data.draw(st.sampled_from(sorted(self.subscriptions)), "list")
        del self.subscriptions[number], self.lists[number]
        self.batch.append(RemoveSubscription(number))

    def _draw_add_messages(self, data: st.DataObject) -> None:
        if not self.lists:
            self._draw_add_subscription(data)
        numbers = data.draw(
            st.lists(st.sampled_from(sorted(self.lists)), min_size=1, max_size=3, unique=True)
        )
        step = data.draw(st.integers(1, 300), "step")
        for body in data.draw(st.lists(_bodies, min_size=1, max_size=5), "bodies"):
            self.last_sequence += step
            sequence = self.last_sequence
            message = Message("queue://q", body, (("n", str(sequence)),), received_at=sequence)
            for number in numbers:
                self.lists[number].append(sequence)
            self.batch.append(AddMessage(sequence, message, tuple(numbers)))

    def _draw_prepare(self, data: st.DataObject) -> None:
        """A branch that sends some messages and locks others, which stay pending."""
        if self.capabilities.branches is None or len(self.branches) >= _LISTS_MAX:
            return
        branch_id = BranchId(7, b"transaction %d" % self.last_list, b"\0\xff")
        number = self.last_list = self.last_list + 1
        locked: tuple[LockedMessages, ...] = ()
        if any(self.lists.values()):
            source = self._draw_pending(data)
            locked = (LockedMessages(source, self._draw_sequences(data, source)),)
        branch = Branch(branch_id, number, prepared_at=number, client_id="a", locked=locked)
        self.branches[branch_id] = branch
        self.batch.append(PutBranch(branch))
        for body in data.draw(st.lists(_bodies, min_size=1, max_size=3), "bodies"):
            self.last_sequence += 1
            message = Message("queue://q", body)
            self.batch.append(AddMessage(self.last_sequence, message, (number,)))

    def _draw_complete(self, data: st.DataObject) -> None:
        """Commit or roll back: sent messages arrive under new sequences, locked ones may leave."""
        if not self.branches:
            return
        branch = self.branches.pop(data.draw(st.sampled_from(list(self.branches)), "branch"))
        if self.lists and data.draw(st.booleans(), "commit"):
            self._draw_add_messages(data)
            for locked in branch.locked:
                pending = self.lists.get(locked.pending_list, [])
                here = tuple(number for number in locked.sequences if number in pending)
                if here:
                    left = [number for number in pending if number not in here]
                    self.lists[locked.pending_list] = left
                    self.batch.append(Acknowledge(locked.pending_list, here))
        self.batch.append(RemoveBranch(branch.branch_id, branch.pending_list))

    def _draw_duplicate_id(self, data: st.DataObject) -> None:
        if self.capabilities.duplicate_ids is None:
            return
        topic = data.draw(_topics)
        if data.draw(st.integers(0, 2), "forget") == 0:
            newer = data.draw(st.integers(0, 600), "newer")
            self.batch.append(ForgetDuplicateIds(topic, max(0, self.last_sequence - newer)))
            return
        self.last_sequence += 1
        text = f"id {self.last_sequence}" + "\U0001f6a2" * data.draw(st.integers(0, 50), "length")
        self.batch.append(AddDuplicateId(topic, text, self.last_sequence))

    def _draw_pending(self, data: st.DataObject) -> int:
        """A list that is not empty."""
        if not any(self.lists.values()):
            self._draw_add_messages(data)
        pending = [number for number, sequences in self.lists.items() if sequences]
        return data.draw(st.sampled_from(pending), "list")

    def _draw_sequences(self, data: st.DataObject, number: int) -> tuple[int, ...]:
        """One or more sequences of a list, in any order."""
        some = st.lists(st.sampled_from(self.lists[number]), min_size=1, unique=True)
        return tuple(data.draw(some, "sequences"))

    def _draw_leaving(self, data: st.DataObject, number: int) -> tuple[int, ...]:
        chosen = self._draw_sequences(data, number)
        self.lists[number] = [found for found in self.lists[number] if found not in chosen]
        return chosen

    def _draw_acknowledge(self, data: st.DataObject) -> None:
        number = self._draw_pending(data)
        sequences = self._draw_leaving(data, number)
        times = tuple(range(len(sequences))) if data.draw(st.booleans(), "with times") else ()
        counts = tuple(range(1, 1 + len(sequences))) if data.draw(st.booleans(), "counts") else ()
        who = (data.draw(_clients), "s", "stomp", "principal")
        outcome = data.draw(st.sampled_from(Outcome))
        self.batch.append(Acknowledge(number, sequences, times, 77, *who, counts, outcome, "why"))

    def _draw_discard(self, data: st.DataObject) -> None:
        number = self._draw_pending(data)
        reason = data.draw(st.sampled_from(DiscardReason))
        self.batch.append(Discard(number, self._draw_leaving(data, number), reason))

    def _draw_move(self, data: st.DataObject) -> None:
        source = self._draw_pending(data)
        target = data.draw(st.sampled_from(sorted(self.lists)), "to")
        sequence = data.draw(st.sampled_from(self.lists[source]), "sequence")
        self.lists[source].remove(sequence)
        self.last_sequence += 1
        self.lists[target].append(self.last_sequence)
        message = Message("queue://dead", data.draw(_bodies, "body"), (("why", "test"),))
        row = Acknowledge(source, (sequence,), (5,), 78, outcome=Outcome.DEAD_LETTERED)
        has_row = data.draw(st.booleans(), "row")
        move = Move(source, sequence, target, self.last_sequence, message, row if has_row else None)
        self.batch.append(move)

    def _draw_record_delivery(self, data: st.DataObject) -> None:
        number = self._draw_pending(data)
        sequences = self._draw_sequences(data, number)
        first = data.draw(st.integers(1, 1_000), "count")
        counts = tuple(range(first, first + len(sequences)))
        self.batch.append(RecordDelivery(number, sequences, counts))

    def _draw_retain(self, data: st.DataObject) -> None:
        topic = data.draw(_topics)
        if data.draw(st.booleans(), "set"):
            owner = data.draw(_clients, "owner")
            kept = Message(topic, data.draw(_bodies), retain=True, owner=owner)
            self.batch.append(SetRetained(kept))
        else:
            self.batch.append(ClearRetained(topic))

    def _draw_session(self, data: st.DataObject) -> None:
        client_id = data.draw(_clients)
        if data.draw(st.booleans(), "put"):
            expiry = data.draw(st.sampled_from([1, 0xFFFF_FFFF]))
            self.batch.append(PutSession(Session(client_id, expiry, 5, {"k": "v"})))
        else:
            self.batch.append(RemoveSession(client_id))

    def _draw_inflight(self, data: st.DataObject) -> None:
        client_id, direction = data.draw(_clients), data.draw(st.sampled_from(InflightDirection))
        packet_id = data.draw(st.sampled_from([1, 2, 65_535]))
        state = data.draw(st.none() | st.sampled_from(InflightState), "state")
        if state is None:
            self.batch.append(RemoveInflight(client_id, direction, packet_id))
        else:
            record = InflightRecord(client_id, direction, packet_id, state, "s", 9)
            self.batch.append(PutInflight(record))

    # ------------------------------------------------------------------------------------ rules

    @rule(
        data=st.data(),
        kinds=st.lists(_kinds, min_size=1, max_size=8),
        durability=st.sampled_from(Durability),
    )
    def write(self, data: st.DataObject, kinds: list[str], durability: Durability) -> None:
        for kind in kinds:
            getattr(self, f"_draw_{kind}")(data)
        for store in (self.store, self.reference):
            self._run(store.write(WriteBatch(list(self.batch), durability)))
        self.batch.clear()

    @precondition(lambda self: self.lists)
    @rule(
        data=st.data(),
        limit=st.integers(1, 20),
        bytes_max=st.integers(1, 100) | st.integers(100, 50_000),
    )
    def page_in(self, data: st.DataObject, limit: int, bytes_max: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.lists)), "list")
        after = data.draw(st.sampled_from([0, self.last_sequence // 2, *self.lists[number]]))
        found = self._run(self.store.page_in(number, after, limit, bytes_max))
        assert list(found) == self._run(self.reference.page_in(number, after, limit, bytes_max))

    @precondition(lambda self: self.capabilities.acknowledged_log is not None)
    @rule(back=st.integers(-3, 3), limit=st.integers(1, 20))
    def acknowledged(self, back: int, limit: int) -> None:
        self._sync()
        after = max(0, self.released + back)
        if after < self.released:
            with pytest.raises(RequestError):
                self._run(self._log().acknowledged(after, limit, _ANY_SIZE))
            return
        found = self._run(self._log().acknowledged(after, limit, _ANY_SIZE))
        expected = self._run(self.reference.acknowledged(after, limit, _ANY_SIZE))
        assert (list(found.rows), found.last) == (list(expected.rows), expected.last)

    @precondition(lambda self: self.capabilities.acknowledged_log is not None)
    @rule(count=st.integers(0, 10))
    def release(self, count: int) -> None:
        self._sync()
        through = min(self.released + count, self.contents.log_last)
        for log in (self._log(), self.reference):
            self._run(log.release_acknowledged(through))
        self.released = through

    @precondition(lambda self: self.capabilities.durable)
    @rule()
    def restart(self) -> None:
        self._close()
        self._open()

    def _sync(self) -> None:
        for store in (self.store, self.reference):
            self._run(store.write(WriteBatch()))

    # ------------------------------------------------------------------------------- invariants

    @invariant()
    def lists_agree(self) -> None:
        for number in range(1, self.last_list + 1):
            found = self._run(self.store.page_in(number, 0, 100_000, _ANY_SIZE))
            expected = self._run(self.reference.page_in(number, 0, 100_000, _ANY_SIZE))
            assert list(found) == list(expected), f"list {number}"
        statistics, expected = self.store.statistics(), self.reference.statistics()
        assert statistics.pending_messages == expected.pending_messages
        assert statistics.writable

    @invariant()
    def logs_agree(self) -> None:
        """Rows may become readable earlier in one store than in the other, but are the same."""
        if self.capabilities.acknowledged_log is None:
            return
        found = self._run(self._log().acknowledged(self.released, 100_000, _ANY_SIZE))
        rows = self.contents.log
        assert list(found.rows) == rows[: len(found.rows)]
        assert self.contents.log_synced <= found.last <= self.contents.log_last
        assert found.last == self.released + len(found.rows)

    def teardown(self) -> None:
        try:
            self._close()
        finally:
            end_loop(self.runner)

    def _close(self) -> None:
        while self.open_stores:
            try:
                self._run(close(self.open_stores.pop()))
            except TimeoutError as error:
                raise StoreHangsError from error
