"""Branches of distributed transactions (XA): prepared, in doubt, committed, rolled back.

Preparing makes a client's transaction durable without carrying it out: its messages go into the
branch's own pending list, which nobody consumes from; what it acknowledged stays pending in its
lists, and nobody gets it. From then on the branch belongs to no connection: it outlives the client
and the gateway until somebody completes it.

Committing reads the messages back and publishes them like any others, under new sequences, in one
batch with the acknowledgements and the end of the branch; rolling back ends it and returns the
acknowledged messages to their lists. Both wait for the store twice (reading, writing), so they are
confirmed later; one that fails leaves the branch as it was.

A heuristic completion (an operator's) leaves a record of what was decided, until the transaction
manager has seen it and lets it be forgotten.

Source: X/Open XA specification, sections 2.3 and 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.broker.destinations import Destinations
from tidegate.broker.lists.leaving import Who
from tidegate.broker.lists.pending_list import InFlight, PendingList
from tidegate.broker.owner import Origin, client_key
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.transactions.duplicates import DuplicateIds
from tidegate.broker.transactions.transactions import Prepared, Transaction
from tidegate.broker.turn.flow import Flow, Tasks
from tidegate.broker.turn.turn import Waiting
from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Branch,
    BranchId,
    BranchState,
    FlowControlError,
    GatewayError,
    LockedMessages,
    Message,
    MessageStore,
    PutBranch,
    RecoveredState,
    RemoveBranch,
    RequestError,
    StoredMessage,
    StoreIOError,
    Token,
    check_branch_id,
    content_bytes,
    names,
)

_log = logging.getLogger("tidegate.broker.branches")

#: Messages and bytes of bodies read at a time when a branch is completed.
_PAGE_COUNT: Final = 1000
_PAGE_BYTES: Final = 16 << 20


def _anything(message: Message) -> None:
    """The one who completes the branch may publish it."""


_DECIDED: Final = {BranchState.COMMITTED: "committed", BranchState.ROLLED_BACK: "rolled back"}


@dataclass(eq=False, repr=False)
class Branches:
    """All branches of the gateway."""

    _store: MessageStore
    _flow: Flow
    _tasks: Tasks
    _destinations: Destinations
    _publisher: Publisher
    _duplicates: DuplicateIds
    _prepared_max: int
    _by_id: dict[BranchId, Prepared] = field(default_factory=dict[BranchId, Prepared])

    def __post_init__(self) -> None:
        self._writer = self._flow.writer

    def __len__(self) -> int:
        return len(self._by_id)

    def all_of(self, principal: str | None = None) -> Sequence[Branch]:
        """Branches of *principal* (None: all), the oldest first."""
        found = [item.stored for item in self._by_id.values() if item.is_durable]
        return [item for item in found if principal is None or item.principal == principal]

    def locked_of(self, pending_list: PendingList) -> int:
        """How many of the list's messages branches in doubt have."""
        return sum(
            len(item.sequences)
            for branch in self._by_id.values()
            for of, item in branch.locked()
            if of is pending_list
        )

    def recover(self, branches: Sequence[Branch], state: RecoveredState) -> None:
        """Restore what the store knows; every list exists, and nobody is served yet."""
        by_id = {item.id: item for item in self._destinations.all_lists()}
        for stored in sorted(branches, key=lambda item: item.prepared_at):
            lists = [by_id.get(item.pending_list) for item in stored.locked]
            branch = self._by_id[stored.branch_id] = Prepared(stored, lists)
            branch.is_claimed = True
            for pending_list, item in branch.locked():
                pending_list.cursor.claim(sorted(item.sequences))
            for _, destination, duplicate_id in stored.duplicate_ids:
                self._duplicates.reserve(destination, duplicate_id, stored.branch_id)
            if stored.state is BranchState.PREPARED:
                _log.warning(
                    "branch=%s prepared_by=%r is in doubt: %d messages wait in it and %d are locked"
                    " until it is committed or rolled back",
                    stored.branch_id,
                    stored.principal or stored.client_id,
                    _count(state, stored.pending_list),
                    sum(len(item.sequences) for item in stored.locked),
                )

    # --- preparing -----------------------------------------------------------------------------

    def check_new(self, branch_id: BranchId, transaction: Transaction) -> None:
        """Check that *transaction* could be prepared. Raises: RequestError, FlowControlError."""
        if self._store.capabilities.branches is None:
            raise RequestError("the message store cannot keep prepared transactions")
        try:
            check_branch_id(branch_id)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if branch_id in self._by_id:
            raise RequestError(f"branch {branch_id} already exists")  # XAER_DUPID
        limit = self._prepared_max
        if len(self._by_id) >= limit:
            raise FlowControlError(
                f"{limit} branches are prepared, which is the limit (broker.prepared_branches_max)"
            )
        for step in transaction.published:
            if names.is_temporary(step.message.destination):
                raise RequestError(
                    "a transaction that sends to a temporary destination cannot be prepared:"
                    " the destination may be gone when it is committed"
                )
            if step.inflight is not None:
                raise RequestError("a packet id cannot be part of a prepared transaction")

    def prepare(
        self,
        branch_id: BranchId,
        transaction: Transaction,
        who: Waiting,
        token: Token,
        *,
        client: tuple[str, str],
        give_back: Callable[[], None],
    ) -> None:
        """Put *transaction*, which was checked, into the filling turn, prepared.

        Args: client: client id and protocol; give_back: undoes the acknowledgements.
        """
        writer = self._writer
        turn = writer.turn
        first = len(turn.operations)
        list_id = writer.take_list_id() if transaction.published else 0
        sent: list[AddMessage] = []
        ids: list[tuple[int, str, str]] = []
        for step in transaction.published:
            sequence = writer.take_sequence()
            message = step.message
            sent.append(AddMessage(sequence, message, (list_id,)))
            turn.body_bytes += content_bytes(message)
            if step.duplicate_id:
                ids.append((sequence, message.destination, step.duplicate_id))
                self._duplicates.reserve(message.destination, step.duplicate_id, branch_id)
        kept = [step for step in transaction.settled if step.pending_list.is_stored]
        kept = [step for step in kept if not step.pending_list.is_removed]
        locked = [step.lock() for step in kept]
        stored = Branch(
            branch_id,
            list_id,
            BranchState.PREPARED,
            writer.now(),
            0,
            *client,
            tuple(locked),
            tuple(ids),
        )
        branch = self._by_id[branch_id] = Prepared(
            stored,
            [step.pending_list for step in kept],
            [entry for step in transaction.settled if step not in kept for entry in step.entries],
            is_durable=False,
            is_busy=True,
        )
        turn.operations += [PutBranch(stored), *sent]

        def undo() -> None:
            self._forget(branch)
            give_back()

        def done() -> None:
            branch.is_durable = True
            branch.is_busy = False
            if token is not None:
                who.confirmed([token])

        turn.when_durable(done, lambda error: who.failed(token, error), first=first, undo=(undo,))
        turn.commits = True
        writer.schedule()

    def _forget(self, branch: Prepared) -> None:
        self._by_id.pop(branch.stored.branch_id, None)
        for _, destination, duplicate_id in branch.stored.duplicate_ids:
            self._duplicates.release(destination, duplicate_id)

    # --- completing ----------------------------------------------------------------------------

    def complete(
        self,
        branch_id: BranchId,
        who: Waiting,
        token: Token,
        *,
        commit: bool,
        heuristic: bool = False,
        check: Callable[[Message], None] = _anything,
    ) -> None:
        """Commit or roll back; *who* is told when it is durable, or why it failed.

        Args: heuristic: an operator does it: keep a record; check: called with each message about
            to be published, and may raise AccessError: then the branch stays as it was.
        Raises: RequestError for a branch that is not in doubt; StoreError.
        """
        branch = self._find(branch_id)
        stored = branch.stored
        if stored.state is not BranchState.PREPARED:
            raise RequestError(
                f"branch {branch_id} was {_DECIDED[stored.state]} by an operator; forget it"
            )
        self._writer.check_writable(adds=commit and bool(stored.pending_list))
        branch.is_busy = True
        self._tasks.spawn(
            self._complete(branch, who, token, check, commit=commit, heuristic=heuristic),
            f"page-in branch {branch_id}",
        )

    def forget(self, branch_id: BranchId, who: Waiting, token: Token) -> None:
        """The transaction manager knows what an operator decided.

        Raises: RequestError for a branch that is in doubt.
        """
        branch = self._find(branch_id)
        if branch.stored.state is BranchState.PREPARED:
            raise RequestError(f"branch {branch_id} is in doubt; commit it or roll it back")
        turn = self._writer.turn
        del self._by_id[branch_id]
        turn.operations.append(RemoveBranch(branch_id, 0))
        turn.unit(len(turn.operations) - 1, who, token)
        turn.synced = True
        self._writer.schedule()

    def _find(self, branch_id: BranchId) -> Prepared:
        branch = self._by_id.get(branch_id)
        if branch is None:
            raise RequestError(f"there is no prepared branch {branch_id}")  # XAER_NOTA
        if branch.is_busy:
            raise RequestError(f"branch {branch_id} is being prepared or completed at this moment")
        return branch

    async def _complete(
        self,
        branch: Prepared,
        who: Waiting,
        token: Token,
        check: Callable[[Message], None],
        *,
        commit: bool,
        heuristic: bool,
    ) -> None:
        try:
            sent = await self._sent(branch) if commit else []
            back: list[tuple[InFlight, Who]] = []
            for pending_list, item in branch.locked():
                if item.rejected or not commit:
                    found = await self._read(pending_list, item.sequences)
                    times = dict(zip(item.sequences, item.delivered_at, strict=False))
                    back += [
                        ((message, pending_list, times.get(message.sequence, 0)), who_had(item))
                        for message in found
                    ]
                elif branch.is_claimed and pending_list.limit and pending_list.limit.weighs:
                    pending_list.leaving(await self._read(pending_list, item.sequences))
            for item in sent:
                check(item.message)
            self._finish(branch, who, token, sent, back, commit=commit, heuristic=heuristic)
        except FAILURES as error:
            branch.is_busy = False
            if not isinstance(error, GatewayError):
                _log.exception("branch=%s cannot be completed", branch.stored.branch_id)
                error = StoreIOError(f"the branch cannot be completed: {failure_of(error)}")
            who.failed(token, error)

    async def _sent(self, branch: Prepared) -> list[StoredMessage]:
        """What the branch sends, in order."""
        found: list[StoredMessage] = []
        list_id = branch.stored.pending_list
        while list_id:
            after = found[-1].sequence if found else 0
            page = await self._store.page_in(list_id, after, _PAGE_COUNT, _PAGE_BYTES)
            if not page:
                break
            found += page
        return found

    async def _read(
        self, pending_list: PendingList, sequences: Sequence[int]
    ) -> list[StoredMessage]:
        """Those of *sequences* that are pending in the list, in the list's order."""
        wanted: set[int] = set(sequences)
        found: list[StoredMessage] = []
        while wanted and not pending_list.is_removed:
            after = min(wanted) - 1
            limit = min(len(wanted), _PAGE_COUNT)
            page = await self._store.page_in(pending_list.id, after, limit, _PAGE_BYTES)
            found += [item for item in page if item.sequence in wanted]
            last = page[-1].sequence if page else max(wanted)
            wanted = {sequence for sequence in wanted if sequence > last}
        return found

    def _finish(
        self,
        branch: Prepared,
        who: Waiting,
        token: Token,
        sent: list[StoredMessage],
        back: list[tuple[InFlight, Who]],
        *,
        commit: bool,
        heuristic: bool,
    ) -> None:
        """Everything has been read: put the end of the branch into the filling turn.

        Raises: GatewayError; nothing has changed then.
        """
        writer, publisher, stored = self._writer, self._publisher, branch.stored
        messages = [item.message for item in sent]
        writer.check_writable(adds=bool(messages))
        origin = Origin(
            stored.principal, client_key(stored.protocol, stored.principal, stored.client_id)
        )
        if messages:
            publisher.check_together(origin, messages)  # also makes missing queues again
        back = [item for item in back if not item[0][1].is_removed]
        again, dead = (
            publisher.sort_rejected(back) if commit else ([entry for entry, _ in back], [])
        )
        turn = writer.turn
        was_synced = turn.synced
        first = len(turn.operations)
        first_sequence = writer.next_sequence
        undo: list[Callable[[], None]] = []
        ids = {sequence: duplicate_id for sequence, _, duplicate_id in stored.duplicate_ids}
        try:
            for item in sent:
                message = item.message
                turn.work += publisher.publish(message, origin, undo).width
                writer.own_sequences += 1  # it was counted as received when it was prepared
                if item.sequence in ids and self._duplicates.is_on:
                    self._duplicates.add(
                        message.destination, ids[item.sequence], writer.next_sequence - 1, undo
                    )
        except BaseException:  # no part of it may become durable
            del turn.operations[first:]
            turn.drop_added(first_sequence, writer.next_sequence)
            for step in reversed(undo):
                step()
            raise
        now = writer.now()
        taken = [each for each in branch.locked() if commit and not each[1].rejected]
        for pending_list, item in taken:
            turn.operations.append(_acknowledge(pending_list, item, now))
        settled = sum(len(item.sequences) for _, item in taken)
        turn.settle(settled)
        for item in dead:
            publisher.dead_letter(item)
        turn.operations.append(RemoveBranch(stored.branch_id, stored.pending_list))
        decided = None
        if heuristic:
            decided = branch.decided(commit=commit, now=now)
            turn.operations.append(PutBranch(decided))
        end_sequence = writer.next_sequence
        undo.append(lambda: turn.drop_added(first_sequence, end_sequence))
        undo.append(lambda: turn.settle(-settled))
        returning = writer.come_back(again)

        def done() -> None:
            self._completed(branch, decided, returning, is_commit=commit)
            if token is not None:
                who.confirmed([token])

        def failed(error: GatewayError) -> None:
            branch.is_busy = False
            who.failed(token, error)

        turn.when_durable(done, failed, first=first, undo=undo)
        turn.synced = was_synced
        turn.commits = True
        writer.schedule()

    def _completed(
        self,
        branch: Prepared,
        decided: Branch | None,
        returning: dict[PendingList, list[StoredMessage]],
        *,
        is_commit: bool,
    ) -> None:
        """The end is durable: the branch is over, and what it locked is free or gone."""
        self._forget(branch)
        if decided is not None:
            self._by_id[decided.branch_id] = Prepared(decided)
            _log.warning("branch=%s heuristically=%r", decided.branch_id, _DECIDED[decided.state])
        for pending_list, messages in returning.items():
            pending_list.put_back(messages)
        for pending_list, item in branch.locked():
            kept = {message.sequence for message in returning.get(pending_list, ())}
            gone = sorted(set(item.sequences) - kept)
            if not gone:
                continue
            selecting = pending_list.selecting
            if branch.is_claimed:
                self._flow.left(pending_list, gone)
                if selecting is not None:  # it may have read them, as they were still pending
                    selecting.forget(gone)
            if selecting is not None:
                selecting.leaving(gone)
        if not is_commit:  # deliveries of what is not stored are recorded nowhere
            self._writer.give_back(branch.unstored)


def _acknowledge(pending_list: PendingList, item: LockedMessages, now: int) -> Acknowledge:
    return Acknowledge(
        pending_list.id,
        item.sequences,
        item.delivered_at,
        now,
        *who_had(item),
        item.delivery_counts,
    )


def who_had(item: LockedMessages) -> Who:
    """Whose transaction it was."""
    return Who(item.client_id, item.subscription, item.protocol, item.principal)


def _count(state: RecoveredState, pending_list: int) -> int:
    count = state.pending.get(pending_list)
    return count.messages if count else 0
