"""What only some stores offer: the acknowledged log, large bodies, prepared branches and duplicate ids."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from tidegate.spi import (
    Acknowledge,
    AcknowledgedMessage,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    Discard,
    DiscardReason,
    Durability,
    ForgetDuplicateIds,
    LargeBody,
    LockedMessages,
    Message,
    Move,
    Outcome,
    PendingCount,
    PutBranch,
    RemoveBranch,
    RequestError,
)
from tidegate.testing._portable_contents import by_key
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add, text


class StoreLog(StoreFixtures):
    """The acknowledged log and large bodies."""

    async def test_the_acknowledged_log_is_dense_and_in_order_of_acknowledgement(
        self, box: StoreBox, logged: None
    ) -> None:
        await box.open(QUEUE, OTHER, *[add(sequence, 1, 2) for sequence in range(1, 6)])
        await box.write(Acknowledge(1, (4, 1)), Acknowledge(2, (1,)))
        await box.write(Discard(1, (2,), DiscardReason.DROPPED), Acknowledge(1, (3,)))
        assert await box.log() == [(1, 4), (2, 1), (3, 1), (4, 3)]
        assert await box.log(after=2) == [(3, 1), (4, 3)]
        assert await box.log(after=4) == []

    async def test_a_row_says_who_consumed_what_and_when(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, add(1), add(2))
        who = ("client", "subscription", "stomp", "principal")
        await box.write(Acknowledge(1, (2, 1), (100, 200), 300, *who, (1, 3), reason="why"))
        page = await box.acknowledged()
        how = Outcome.ACKNOWLEDGED, "why"
        assert page.last == 2
        assert list(page.rows) == [
            AcknowledgedMessage(1, 2, text(2), 1, 100, 300, *who, 1, *how),
            AcknowledgedMessage(2, 1, text(1), 1, 200, 300, *who, 3, *how),
        ]

    async def test_a_row_of_what_nobody_was_told_of_says_so(
        self, box: StoreBox, logged: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (2, 1)))
        assert list((await box.acknowledged()).rows) == [
            AcknowledgedMessage(1, 2, text(2), 1, 0, 0, "", "", ""),
            AcknowledgedMessage(2, 1, text(1), 1, 0, 0, "", "", ""),
        ]

    async def test_a_row_says_how_it_ended(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        """Whatever the outcome, a confirmed message has a row, and its body stays until then."""
        await box.open(QUEUE, OTHER, *[add(1 + outcome, 1, 2) for outcome in Outcome])
        for outcome in Outcome:
            row = Acknowledge(1, (1 + outcome,), (0,), 300, outcome=outcome, reason="why")
            await box.write(row, durability=Durability.WRITTEN)
        await box.write(Discard(2, tuple(1 + outcome for outcome in Outcome), DiscardReason.PURGED))
        for _ in range(2):
            assert [
                (row.sequence, row.message, row.outcome, row.reason)
                for row in (await box.acknowledged()).rows
            ] == [(1 + one, text(1 + one), one, "why") for one in Outcome]
            await box.restart()

    async def test_a_message_that_moves_has_a_row_where_the_move_says_so(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER, add(1), add(2), add(3))
        who = ("client", "s", "stomp", "principal")
        how = ((4,), Outcome.DEAD_LETTERED, "rejected")
        row = Acknowledge(1, (2,), (100,), 300, *who, *how)
        await box.write(
            Move(1, 1, 2, 4, text(4)), Move(1, 2, 2, 5, text(5), row), Acknowledge(1, (3,))
        )
        for _ in range(2):
            assert list((await box.acknowledged()).rows) == [
                AcknowledgedMessage(1, 2, text(2), 1, 100, 300, *who, 4, *how[1:]),
                AcknowledgedMessage(2, 3, text(3), 1, 0, 0, "", "", ""),
            ]
            assert (await box.sequences(), await box.sequences(2)) == ([], [4, 5])
            await box.restart()

    async def test_a_row_is_the_same_after_a_restart(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        message = msgspec.structs.replace(
            text(1), owner="alice", protocol_version="5.0", stored_at=50
        )
        await box.open(QUEUE, AddMessage(1, message, (1,)), add(2))
        who = ("client", "subscription", "mqtt", "principal")
        await box.write(Acknowledge(1, (1,), (100,), 300, *who, (7,)))
        await box.write(Acknowledge(1, (2,), (101,), 301, *who, reason="why"))
        for _ in range(2):
            assert list((await box.acknowledged()).rows) == [
                AcknowledgedMessage(1, 1, message, 1, 100, 300, *who, 7),
                AcknowledgedMessage(2, 2, text(2), 1, 101, 301, *who, reason="why"),
            ]
            await box.restart()

    async def test_the_acknowledged_log_is_read_in_pages(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, *[add(number, body=bytes(100)) for number in range(1, 11)])
        await box.write(Acknowledge(1, tuple(range(1, 11))))
        page = await box.acknowledged(0, 4)
        assert [row.ack_sequence for row in page.rows] == [1, 2, 3, 4]
        assert page.last == 10
        page = await box.acknowledged(8, 4)
        assert [row.ack_sequence for row in page.rows] == [9, 10]
        assert len((await box.acknowledged(0, 10, 350)).rows) in range(1, 4)
        assert len((await box.acknowledged(0, 10, 1)).rows) == 1

    async def test_pages_of_any_size_have_the_same_rows(self, box: StoreBox, logged: None) -> None:
        """In encoded form, too, if the store offers that."""
        await box.open(QUEUE, *[add(number, body=bytes(10 * number)) for number in range(1, 9)])
        who = ("client", "subscription", "stomp", "principal")
        await box.write(Acknowledge(1, (2, 1, 3), (100, 200, 300), 400, *who, (1, 3, 1)))
        await box.write(Acknowledge(1, (8, 4), outcome=Outcome.EXPIRED, reason="why"))
        await box.write(*[Acknowledge(1, (number,)) for number in (5, 6, 7)])
        rows = list((await box.acknowledged()).rows)
        encoded = box.store.capabilities.encoded_log
        for after, limit, size in product(range(9), (1, 2, 4, 100), (1, 30, 31, 100, 1_000)):
            page = await box.acknowledged(after, limit, size)
            assert list(page.rows) == rows[after : after + len(page.rows)]
            assert len(page.rows) in range(min(1, len(rows) - after), limit + 1)
            if encoded is not None:
                found = await encoded.acknowledged_encoded(after, limit, size)
                assert [row for run in found.runs for row in run.decode()] == list(page.rows)
                assert (found.last, found.count) == (page.last, len(page.rows))
        await box.rows.release_acknowledged(4)
        assert list((await box.acknowledged(4)).rows) == rows[4:]
        if encoded is not None:
            with pytest.raises(RequestError):
                await encoded.acknowledged_encoded(3, 10, 1_000)
            (run,) = (await encoded.acknowledged_encoded(4, 1, 1)).runs
            assert (run.first, run.last, len(run), run.sequences[0]) == (5, 5, 1, 4)

    async def test_a_row_whose_body_is_elsewhere_stands_between_others(
        self, box: StoreBox, logged: None
    ) -> None:
        """It ends a run of encoded rows. For a store without such bodies, all three are alike."""
        await box.open(QUEUE, add(1))
        large = text(2)
        if box.store.capabilities.large_bodies is not None:
            body, _ = await _uploaded(box)
            large = Message("queue://orders", b"", (("a", "b"),), large=body)
        await box.write(AddMessage(2, large, (1,)), add(3))
        await box.write(Acknowledge(1, (1, 2, 3)))
        page = await box.acknowledged()
        assert [row.message for row in page.rows] == [text(1), large, text(3)]
        encoded = box.store.capabilities.encoded_log
        if encoded is None or large.large is None:
            return
        (run,) = (await encoded.acknowledged_encoded(0, 10, 1_000_000)).runs
        assert [row.message for row in run.decode()] == [text(1)]
        found = await encoded.acknowledged_encoded(1, 10, 1_000_000)
        assert (found.runs, found.last) == ([], 3)
        (run,) = (await encoded.acknowledged_encoded(2, 10, 1_000_000)).runs
        assert [row.message for row in run.decode()] == [text(3)]

    async def test_the_acknowledged_log_continues_over_restarts(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        await box.open(QUEUE)
        for round_ in range(1, 5):
            await box.write(*[add(10 * round_ + step) for step in range(3)])
            await box.write(Acknowledge(1, tuple(10 * round_ + step for step in (2, 0, 1))))
            await box.restart()
        assert await box.log() == list(
            enumerate([10 * round_ + step for round_ in range(1, 5) for step in (2, 0, 1)], 1)
        )
        page = await box.acknowledged(11, 1)
        assert page.rows[0].message == text(41)

    async def test_rows_are_kept_until_they_are_released(
        self, box: StoreBox, logged: None, durable: None
    ) -> None:
        await box.open(QUEUE, *[add(sequence) for sequence in range(1, 7)])
        await box.write(Acknowledge(1, (1, 2, 3, 4)))
        await box.rows.release_acknowledged(2)
        await box.rows.release_acknowledged(2)
        await box.rows.release_acknowledged(1)
        for _ in range(2):
            assert await box.log(after=2) == [(3, 3), (4, 4)]
            with pytest.raises(RequestError):
                await box.acknowledged(1, 10)
            await box.write()  # makes the release durable, at the latest
            await box.restart()
        await box.rows.release_acknowledged(4)
        await box.write(Acknowledge(1, (5,)))
        assert await box.log(after=4) == [(5, 5)]
        await box.restart()
        assert await box.log(after=4) == [(5, 5)]
        assert await box.sequences() == [6]

    async def test_rows_are_readable_once_a_synced_batch_followed(
        self, box: StoreBox, logged: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (1,)), durability=Durability.WRITTEN)
        await box.write(Acknowledge(1, (2,)), durability=Durability.SYNCED)
        page = await box.acknowledged()
        assert ([row.sequence for row in page.rows], page.last) == ([1, 2], 2)

    async def test_without_a_sink_nothing_is_logged(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, add(1), keep_acknowledged=False)
        await box.write(Acknowledge(1, (1,)))
        assert await box.log() == []
        assert box.rows.log_statistics().held_bytes == 0

    async def test_statistics_follow_what_is_held(self, box: StoreBox, logged: None) -> None:
        await box.open(QUEUE, OTHER, *[add(number, 1, 2, body=bytes(50)) for number in range(1, 5)])
        found = box.store.statistics()
        assert (found.pending_messages, found.writable) == (4, True)
        before = box.rows.log_statistics()
        assert (before.held_bytes, before.oldest_at) == (0, 0)
        assert before.first == before.last + 1
        await box.write(Acknowledge(1, (1, 2), acked_at=70), Acknowledge(2, (1,), acked_at=80))
        assert box.store.statistics().pending_messages == 3
        # A store that keeps messages in two places may learn only from its rows how large a body was.
        assert await box.log() == [(1, 1), (2, 2), (3, 1)]
        held = box.rows.log_statistics()
        assert (held.first, held.last) == (1, 3)
        assert held.held_bytes >= 50
        assert held.oldest_at == 70
        await box.rows.release_acknowledged(3)
        after = box.rows.log_statistics()
        assert (after.first, after.last) == (4, 3)
        assert (after.held_bytes, after.oldest_at) == (0, 0)
        assert box.store.statistics().disk_bytes >= 0

    async def test_large_bodies_live_as_long_as_their_messages(self, box: StoreBox) -> None:
        """Does nothing for a store without large bodies."""
        await box.open(QUEUE, OTHER)
        if box.store.capabilities.large_bodies is None:
            return
        body, content = await _uploaded(box)
        message = Message("queue://orders", b"", (("a", "b"),), large=body)
        await box.write(AddMessage(1, message, (1, 2)), add(2))
        given_up = box.bodies.create(len(content))
        await given_up.write(content[:10])
        given_up.abandon()
        await box.write(Acknowledge(1, (1,)))
        await box.restart()
        (stored,) = await box.page(2)
        assert stored.message == message
        assert stored.message.large is not None
        reader = box.bodies.open(stored.message.large)
        await box.write(Acknowledge(2, (1,)))  # the reader keeps the bytes
        pieces: list[bytes] = []
        while piece := await reader.read(1000):
            pieces.append(piece)
        assert max(map(len, pieces)) <= 1000
        assert b"".join(pieces) == content
        reader.close()
        assert await box.sequences() == [2]

    async def test_a_large_body_may_end_wherever_it_does(self, box: StoreBox) -> None:
        """Does nothing for a store without large bodies."""
        await box.open(QUEUE)
        if box.store.capabilities.large_bodies is None:
            return
        sized, content = await _uploaded(box)
        body, _ = await _uploaded(box, sized=False)
        assert (body.size, body.checksum) == (len(content), sized.checksum)
        await box.write(AddMessage(1, Message("queue://orders", b"", large=body), (1,)))
        given_up = box.bodies.create(None)
        await given_up.write(content)
        given_up.abandon()
        await box.restart()
        (stored,) = await box.page()
        found = stored.message.large
        assert found is not None
        assert found == body
        reader = box.bodies.open(found)
        assert await reader.read(len(content)) + await reader.read(1) == content
        reader.close()


class StoreBranches(StoreFixtures):
    """Prepared branches and duplicate ids."""

    async def test_a_prepared_branch_comes_back_with_its_messages_and_what_it_locks(
        self, box: StoreBox, branching: None, durable: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        branch = Branch(
            BranchId(-5, bytes(range(64)), b"\xff", "manager"),
            9,
            BranchState.PREPARED,
            1_700_000_000_000_001,
            0,
            "client",
            "stomp",
            (LockedMessages(1, (2, 1), (10, 20), "client", "s", "stomp", True, "who", (2, 3)),),
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
        ids = [
            BranchId(1, b"a"),
            BranchId(1, b"b"),
            BranchId(1, b"a", b"q"),
            BranchId(1, b"a", owner="ann"),
            BranchId(1, b"a", owner="bob"),
        ]
        await box.open(QUEUE, add(1))
        for number, branch_id in enumerate(ids, 10):
            branch = Branch(branch_id, number, locked=(LockedMessages(1, (1,)),))
            await box.write(PutBranch(branch), add(number, number))
        await box.write(RemoveBranch(ids[0], 10), RemoveBranch(BranchId(9, b"never"), 0))
        for _ in range(2):
            await box.restart()
            assert {branch.branch_id for branch in box.branches} == set(ids[1:])
            assert await box.sequences(1) == [1]
            found = [await box.sequences(number) for number in range(10, 15)]
            assert found == [[], [11], [12], [13], [14]]
            assert box.store.statistics().pending_messages == 5

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


async def _uploaded(box: StoreBox, *, sized: bool = True) -> tuple[LargeBody, bytes]:
    """A body just large enough, written in two pieces, and its bytes."""
    content = bytes(range(256)) * (box.bodies.size_min // 256 + 2)
    writer = box.bodies.create(len(content) if sized else None)
    middle = len(content) // 2
    await writer.write(content[:middle])
    await writer.write(content[middle:])
    return await writer.finish(), content
