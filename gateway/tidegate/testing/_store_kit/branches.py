"""Prepared branches and duplicate ids: of stores that offer them."""

from __future__ import annotations

from tidegate.spi import (
    Acknowledge,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    ForgetDuplicateIds,
    LockedMessages,
    PendingCount,
    PutBranch,
    RemoveBranch,
)
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add, text
from tidegate.testing._store_machine import by_key


class StoreBranches(StoreFixtures):
    """Prepared branches and duplicate ids."""

    async def test_a_prepared_branch_comes_back_with_its_messages_and_what_it_locks(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        branch = Branch(
            BranchId(-5, bytes(range(64)), b"\xff"),
            9,
            BranchState.PREPARED,
            1_700_000_000_000_001,
            0,
            "manager",
            "client",
            "stomp",
            (LockedMessages(1, (2, 1), (10, 20), "client", "s", "stomp", True),),
            ((4, "queue://orders", "id"),),
        )
        await box.write(PutBranch(branch), add(4, 9), add(5, 9))
        for _ in range(3):
            assert await box.sequences(9) == [4, 5]
            assert await box.sequences(1) == [1, 2]
            await box.restart()
            assert list(box.branches) == [branch]
            assert by_key(box.state)["pending"] == {1: PendingCount(2, 18), 9: PendingCount(2, 18)}
            assert (box.state.last_sequence, box.state.last_pending_list) == (5, 9)

    async def test_committing_a_branch_is_one_batch(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        branch_id = BranchId(1, b"transaction", b"branch")
        await box.open(QUEUE, OTHER, add(1), add(2))
        await box.write(PutBranch(Branch(branch_id, 3)), add(3, 3), add(4, 3))
        await box.write(add(5))
        await box.write(
            AddMessage(6, text(3), (1,)),
            AddMessage(7, text(4), (1, 2)),
            Acknowledge(1, (2,)),
            RemoveBranch(branch_id, 3),
        )
        for _ in range(2):
            assert await box.sequences(1) == [1, 5, 6, 7]
            assert await box.sequences(2) == [7]
            assert await box.sequences(3) == []
            assert box.store.statistics().pending_messages == 4
            await box.restart()
            assert list(box.branches) == []
            assert box.state.last_pending_list == 3
        page = await box.page(1, 5, 10)
        assert [stored.message for stored in page] == [text(3), text(4)]

    async def test_rolling_back_a_branch_leaves_what_it_locked(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        ids = [BranchId(1, b"a"), BranchId(1, b"b"), BranchId(1, b"a", b"q")]
        await box.open(QUEUE, add(1))
        for number, branch_id in enumerate(ids, 10):
            branch = Branch(branch_id, number, locked=(LockedMessages(1, (1,)),))
            await box.write(PutBranch(branch), add(number, number))
        await box.write(RemoveBranch(ids[0], 10), RemoveBranch(BranchId(9, b"never"), 0))
        for _ in range(2):
            await box.restart()
            assert {branch.branch_id for branch in box.branches} == set(ids[1:])
            assert await box.sequences(1) == [1]
            assert [await box.sequences(number) for number in (10, 11, 12)] == [[], [11], [12]]
            assert box.store.statistics().pending_messages == 3

    async def test_what_an_operator_decided_takes_the_place_of_the_branch(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        branch_id = BranchId(1, b"transaction")
        await box.open(QUEUE, PutBranch(Branch(branch_id, 2)), add(1, 2))
        decided = Branch(branch_id, 0, BranchState.COMMITTED, 5, 6)
        await box.write(
            AddMessage(2, text(1), (1,)), RemoveBranch(branch_id, 2), PutBranch(decided)
        )
        for _ in range(2):
            await box.restart()
            assert list(box.branches) == [decided]
            assert await box.sequences(1) == [2]
            assert await box.sequences(2) == []
        await box.write(RemoveBranch(branch_id, 0))
        await box.restart()
        assert list(box.branches) == []
        assert await box.sequences(1) == [2]

    async def test_duplicate_ids_come_back_in_the_order_of_their_sequences(
        self, box: StoreBox, deduplicating: None, durable: None
    ) -> None:
        long = "\U0001f6a2" * 128
        await box.open(
            QUEUE,
            AddDuplicateId("queue://orders", "one", 1),
            add(1),
            AddDuplicateId("topic://\u00e4", "one", 2),
        )
        await box.write(add(3), AddDuplicateId("queue://orders", long, 3))
        await box.write(AddDuplicateId("queue://orders", "four", 4))
        for _ in range(3):
            await box.restart()
            found = [
                (known.sequence, known.duplicate_id)
                for known in box.duplicate_ids
                if known.destination == "queue://orders"
            ]
            assert found == [(1, "one"), (3, long), (4, "four")]
            assert len(box.duplicate_ids) == 4
            assert box.state.last_sequence == 4

    async def test_forgotten_duplicate_ids_stay_forgotten(
        self, box: StoreBox, deduplicating: None, durable: None
    ) -> None:
        def ids(*numbers: int) -> list[AddDuplicateId]:
            return [AddDuplicateId("queue://orders", f"id {number}", number) for number in numbers]

        await box.open(QUEUE, *ids(1, 2, 3, 4), AddDuplicateId("queue://returns", "r", 5))
        await box.write(ForgetDuplicateIds("queue://orders", 2))
        await box.restart()
        await box.write(
            *ids(6, 7), ForgetDuplicateIds("queue://orders", 6), ForgetDuplicateIds("topic://x", 9)
        )
        await box.write(*ids(8))
        for _ in range(2):
            await box.restart()
        found = [
            (known.destination, known.sequence, known.duplicate_id) for known in box.duplicate_ids
        ]
        assert sorted(found) == [
            ("queue://orders", 7, "id 7"),
            ("queue://orders", 8, "id 8"),
            ("queue://returns", 5, "r"),
        ]
