"""Reference stores that each break the contract in one way, and factories of them."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence

import msgspec

from tidegate.spi import (
    Acknowledge,
    AcknowledgedPage,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Discard,
    DiscardReason,
    ForgetDuplicateIds,
    MessageStore,
    Move,
    Operation,
    Outcome,
    PutBranch,
    PutSubscription,
    RecordDelivery,
    RemoveBranch,
    RemoveSession,
    RemoveSubscription,
    SetRetained,
    StoreCapabilities,
    StoreContext,
    StoredMessage,
    StoreFullError,
    StoreIOError,
    WriteBatch,
)
from tidegate.testing.memory_store import MemoryContents, MemoryStore, MemoryStoreFactory


class RoomFactory:
    """Makes reference stores on contents whose room the kit decides, with *fault* when given."""

    options_type: type = MemoryStoreFactory().options_type

    def __init__(self, fault: Callable[[MemoryStore], object] = lambda store: store) -> None:
        self.contents = MemoryContents()
        self._fault = fault

    def create(self, context: StoreContext, options: object) -> MessageStore:
        return self._fault(MemoryStore(context, self.contents))  # type: ignore[return-value]

    def limit_room(self, room: int | None) -> None:
        held = self.contents.pending_bytes()
        self.contents.bytes_max = None if room is None else held + room


class Broken:
    """A reference store with one fault; everything else is passed on."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(self._store.capabilities, acknowledged_log=self)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class ReversesPages(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        return (await self._store.page_in(pending_list, after, limit, bytes_max))[::-1]


class IgnoresByteLimit(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        return await self._store.page_in(pending_list, after, limit, 1 << 40)


class WritesHalfOfABatch(Broken):
    async def write(self, batch: WriteBatch) -> None:
        half = WriteBatch(batch.operations[: (len(batch) + 1) // 2])
        await self._store.write(half)
        await asyncio.sleep(0)
        await self._store.write(WriteBatch(batch.operations[len(half) :]))


class ForgetsDeliveryCounts(Broken):
    async def write(self, batch: WriteBatch) -> None:
        kept: list[Operation] = [
            known for known in batch.operations if not isinstance(known, RecordDelivery)
        ]
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsTheRowsOfWhatExpired(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            Discard(known.pending_list, known.sequences, DiscardReason.EXPIRED)
            if isinstance(known, Acknowledge) and known.outcome is Outcome.EXPIRED
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsTheRowsOfWhatMoves(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            msgspec.structs.replace(known, row=None) if isinstance(known, Move) else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsWhyItEnded(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            msgspec.structs.replace(known, reason="") if isinstance(known, Acknowledge) else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class SortsAcknowledgements(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            Acknowledge(known.pending_list, tuple(sorted(known.sequences)))
            if isinstance(known, Acknowledge)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class Without(Broken):
    """Leaves operations of one kind out."""

    kind: type

    async def write(self, batch: WriteBatch) -> None:
        kept = [known for known in batch.operations if not isinstance(known, self.kind)]
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsBranches(Without):
    kind = PutBranch


class KeepsBranches(Without):
    kind = RemoveBranch


class ForgetsDuplicateIds(Without):
    kind = AddDuplicateId


class KeepsDuplicateIds(Without):
    kind = ForgetDuplicateIds


class ForgetsWhoseASubscriptionIs(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            PutSubscription(msgspec.structs.replace(known.subscription, session=""))
            if isinstance(known, PutSubscription)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class KeepsOneSubscriptionOfEachSession(Broken):
    """As if what a session shares were one value of the session."""

    async def write(self, batch: WriteBatch) -> None:
        kept = list[Operation]()
        before = self._store.contents.subscriptions
        for known in batch.operations:
            if isinstance(known, PutSubscription) and (session := known.subscription.session):
                others = [one for one in before.values() if one.session == session]
                kept += [RemoveSubscription(one.pending_list) for one in others]
            kept.append(known)
        await self._store.write(WriteBatch(kept, batch.durability))


class ForgetsWhoMadeQueues(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            AddDestination(known.destination, known.pending_list)
            if isinstance(known, AddDestination)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class ForgetsWhatIsPaused(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            AddDestination(known.destination, known.pending_list, known.owner)
            if isinstance(known, AddDestination)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class EmptiesWhatIsPaused(Broken):
    async def write(self, batch: WriteBatch) -> None:
        for known in batch.operations:
            if isinstance(known, AddDestination) and known.pending_list:
                self._store.contents.lists.pop(known.pending_list, None)
        await self._store.write(batch)


class ForgetsWhoRetained(Broken):
    async def write(self, batch: WriteBatch) -> None:
        changed: list[Operation] = [
            SetRetained(msgspec.structs.replace(known.message, owner=""))
            if isinstance(known, SetRetained)
            else known
            for known in batch.operations
        ]
        await self._store.write(WriteBatch(changed, batch.durability))


class WritesWhereNobodyLooks(Broken):
    async def open(self) -> object:
        found = await self._store.open()
        (self._store._context.data_directory / "messages").write_bytes(b"x")  # pyright: ignore[reportPrivateUsage]
        return found


class SaysItTakesNothing(Broken):
    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(self._store.capabilities, measures_room=True)


class KeepsPacketIds(Broken):
    async def write(self, batch: WriteBatch) -> None:
        kept = dict(self._store.contents.inflight)
        await self._store.write(batch)
        if any(isinstance(known, RemoveSession) for known in batch.operations):
            self._store.contents.inflight.update(kept)


class KeepsOneSessionOfEachClientId(Broken):
    async def write(self, batch: WriteBatch) -> None:
        await self._store.write(batch)
        sessions = self._store.contents.sessions
        latest = {session.client_id or session.key: session for session in sessions.values()}
        sessions.clear()
        sessions.update({session.key: session for session in latest.values()})


class KeepsOneBranchOfEachXid(Broken):
    async def write(self, batch: WriteBatch) -> None:
        await self._store.write(batch)
        branches = self._store.contents.branches
        latest = {str(found).partition("@")[0]: branches[found] for found in branches}
        branches.clear()
        branches.update({branch.branch_id: branch for branch in latest.values()})


class HangsInClose(Broken):
    calls = 0
    goes_on = threading.Event()

    async def close(self) -> None:
        HangsInClose.calls += 1
        await self.hang()

    async def hang(self) -> None:
        await asyncio.Event().wait()


class HangsInAThread(HangsInClose):
    async def hang(self) -> None:
        await asyncio.to_thread(self.goes_on.wait)


class HangsAndBlocksTheLoop(HangsInClose):
    async def hang(self) -> None:
        self.goes_on.wait()


class HangsAndIsNotCancelled(HangsInClose):
    async def hang(self) -> None:
        while not self.goes_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


HANGING = [HangsInClose, HangsInAThread, HangsAndBlocksTheLoop, HangsAndIsNotCancelled]


class NeverReleases(Broken):
    async def release_acknowledged(self, through: int) -> None:
        pass


class HidesTheLastRow(Broken):
    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        page = await self._store.acknowledged(after, limit, bytes_max)
        return AcknowledgedPage(page.rows[:-1], page.last)


class AnswersAfterClose(Broken):
    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        try:
            return await self._store.page_in(pending_list, after, limit, bytes_max)
        except Exception:
            return ()


class OffersNothingOptional(Broken):
    """Keeps the contract: a durable store with a log, and without what only some stores can do."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return dataclasses.replace(
            self._store.capabilities, large_bodies=None, branches=None, duplicate_ids=None
        )

    async def write(self, batch: WriteBatch) -> None:
        for known in batch.operations:
            assert not isinstance(
                known, PutBranch | RemoveBranch | AddDuplicateId | ForgetDuplicateIds
            )
        await self._store.write(batch)


class SharesItsContents(Broken):
    async def open(self) -> object:
        self._store.contents.owner = None
        return await self._store.open()


class StaysReadOnlyAfterFull(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            self._store.write_error = StoreIOError("no room")
            raise


class StaysFull(Broken):
    is_full = False

    async def write(self, batch: WriteBatch) -> None:
        adds = any(isinstance(known, AddMessage) for known in batch.operations)
        try:
            if self.is_full and adds:
                raise StoreFullError("no room")
            await self._store.write(batch)
        except StoreFullError:
            self.is_full = True
            raise


class KeepsPartOfWhatItRefuses(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            self._store.contents.bytes_max = None
            await self._store.write(WriteBatch(batch.operations[:1]))
            raise


class DropsTheOldestWhenFull(Broken):
    async def write(self, batch: WriteBatch) -> None:
        try:
            await self._store.write(batch)
        except StoreFullError:
            (messages,) = self._store.contents.lists.values()
            del messages[min(messages)]
            raise


class BrokenFactory(MemoryStoreFactory):
    def __init__(self, fault: type[Broken]) -> None:
        super().__init__()
        self._fault = fault

    def create(self, context: StoreContext, options: object) -> object:  # type: ignore[override]
        return self._fault(super().create(context, options))  # type: ignore[arg-type]
