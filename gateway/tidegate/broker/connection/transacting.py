"""The open transactions of one client: what each holds back, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tidegate.broker.connection.client import Client
from tidegate.broker.connection.serving import Serving
from tidegate.broker.limits.list_limit import DisconnectError
from tidegate.broker.lists.leaving import who_of
from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.route.router import Route
from tidegate.broker.transactions.transactions import Published, Settled, Transaction, settled
from tidegate.broker.turn.flow import STATE_WORK
from tidegate.spi import BranchId, GatewayError, RequestError, Token, names


class Transacting:
    """See the module. What a client acknowledges in a transaction is held here, too."""

    __slots__ = ("_client", "_flow", "_parts", "_publisher", "_serving", "_transactions", "_writer")

    def __init__(self, client: Client, serving: Serving) -> None:
        parts = self._parts = client.parts
        self._client = client
        self._serving = serving
        self._flow = parts.flow
        self._publisher = parts.publisher
        self._writer = parts.writer
        self._transactions: dict[str, Transaction] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._transactions)

    def held_of(self, pending_list: PendingList) -> int:
        """How many messages of the list they hold."""
        return sum(
            len(step.entries)
            for transaction in self._transactions.values()
            for step in transaction.settled
            if step.pending_list is pending_list
        )

    def begin(self, transaction: str) -> None:
        if transaction in self._transactions:
            raise RequestError(f"transaction {transaction!r} is already open")
        limits = self._parts.config
        if len(self._transactions) >= limits.transactions_open_max:
            raise RequestError(
                f"this connection has {len(self._transactions)} open transactions, the "
                "limit (broker.transactions_open_max)"
            )
        self._transactions[transaction] = Transaction(
            limits.transaction_operations_max, self._client.account
        )

    def commit(self, transaction: str, token: Token = None) -> None:
        self._in_its_turn(transaction, token, partial(self._commit, transaction, token))

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        act = partial(self._prepare, transaction, branch_id, token)
        self._in_its_turn(transaction, token, act)

    def _in_its_turn(self, transaction: str, token: Token, act: Callable[[], None]) -> None:
        count = self.of(transaction).count
        self._flow.deferred.in_its_turn(self._client, count, token, act)

    def _commit(self, transaction: str, token: Token) -> None:
        held = self.of(transaction)
        parts, writer, publisher = self._parts, self._writer, self._publisher
        self._check_commit(transaction, held)
        self._transactions.pop(transaction).end()
        rejected = [
            (entry, who_of(step.consumer))
            for step in held.settled
            if step.is_rejected
            for entry in step.entries
        ]
        again, dead = publisher.sort_rejected(rejected)
        turn = writer.turn
        was_synced = turn.synced
        first = len(turn.operations)
        first_sequence = writer.next_sequence
        now = writer.now()
        undo: list[Callable[[], None]] = []
        routes: list[Route] = []
        settled = 0
        for step in held.steps:
            if isinstance(step, Published):
                routes.append(publisher.publish(step.message, self._client.origin, undo))
                if step.duplicate_id:
                    sequence, destination = writer.next_sequence - 1, step.message.destination
                    parts.duplicates.add(destination, step.duplicate_id, sequence, undo)
                self._client.put_inflight(step.inflight, undo)
            elif not step.is_rejected:
                operation = step.acknowledge(now)
                if operation is not None:
                    turn.operations.append(operation)
                    settled += len(operation.sequences)
        turn.settle(settled)
        for item in dead:
            publisher.dead_letter(item)
        end_sequence = writer.next_sequence

        def undo_commit() -> None:
            turn.settle(-settled)
            turn.drop_added(first_sequence, end_sequence)  # including what needed no storing
            writer.give_back(item[0] for item in dead)
            self._restore_in_flight(step for step in held.settled if not step.is_rejected)

        undo.append(undo_commit)
        turn.unit(first, self._client, token, undo)
        turn.synced = was_synced
        turn.commits = True
        writer.give_back(again)
        work = STATE_WORK * sum(step.message.retain for step in held.published)
        self._flow.add_work(self._client, work + sum(route.width for route in routes))
        self._flow.throttle_if_large(self._client)
        if self._flow.full_lists:
            for route in routes:
                self.throttle_full(route)
        writer.schedule()

    def _check_commit(self, transaction: str, held: Transaction) -> None:
        """Check that all of it can be done: it is all or nothing. Raises: GatewayError."""
        self._writer.check_writable(adds=bool(held.published))
        if self._client.is_undecided:
            self._client.decide_who()
        parts = self._parts
        published = held.published
        if parts.access.authorizers:
            for step in published:
                parts.access.check_held(self._client, step.message)
        for destination in dict.fromkeys(step.message.destination for step in published):
            if names.is_temporary(destination):  # it may be gone
                parts.temporary.check_exists(destination)
            elif destination not in self._publisher.routes:  # a queue may be gone, too
                self._publisher.resolve(destination, self._client.principal)
        if self._publisher.detours:
            messages = [step.message for step in published]
            try:
                self._publisher.check_together(self._client.origin, messages)
            except DisconnectError as error:
                self._client.end_behind_answers(error)
                raise
        ids = [(s.message.destination, s.duplicate_id) for s in published if s.duplicate_id]
        if ids:
            try:
                parts.duplicates.check_new(ids, self._client.principal)
            except RequestError:
                self.abort(transaction)
                raise

    def abort(self, transaction: str, token: Token = None) -> None:
        held = self.of(transaction)
        self._transactions.pop(transaction).end()
        self._restore_in_flight(held.settled)
        if token is not None:
            self._writer.confirm(self._client, token)

    def _prepare(self, transaction: str, branch_id: BranchId, token: Token) -> None:
        held = self.of(transaction)
        parts = self._parts
        parts.branches.check_new(branch_id, held)
        self._check_commit(transaction, held)
        self._transactions.pop(transaction).end()
        client = (self._client.client_id, self._client.protocol)
        parts.branches.prepare(
            branch_id,
            held,
            self._client,
            token,
            client=client,
            give_back=lambda: self._restore_in_flight(held.settled),
        )
        self._flow.throttle_if_large(self._client)

    def of(self, transaction: str) -> Transaction:
        """The open transaction of that name. Raises: RequestError."""
        held = self._transactions.get(transaction)
        if held is None:
            raise RequestError(f"there is no open transaction {transaction!r}; send BEGIN first")
        return held

    def hold(
        self,
        consumer: Consumer,
        entries: list[InFlight],
        transaction: str,
        token: Token,
        *,
        is_rejected: bool,
    ) -> None:
        """Hold what *consumer* acknowledged or rejected. Raises: GatewayError; then it is in flight again."""
        steps = settled(consumer, entries, is_rejected=is_rejected)
        try:
            held = self.of(transaction)
            held.check_room(len(entries))
            held.settle(steps)
        except GatewayError:
            self._restore_in_flight(steps)
            raise
        if token is not None:
            self._writer.confirm(self._client, token)

    def abort_all(self) -> None:
        """The connection ends; a waiting COMMIT is carried out, because it came before."""
        self._flow.deferred.carry_out(self._client)
        for transaction in list(self._transactions):
            self.abort(transaction)

    def has_in_flight(self) -> bool:
        """Messages wait for this client's acknowledgement, or for its COMMIT."""
        return bool(self._transactions) or self._serving.has_in_flight()

    def throttle_full(self, route: Route) -> None:
        """The client has published along *route*: if a list is full, it waits."""
        # A producer that also has messages in flight is not stopped: with its socket paused its
        # acknowledgements would never be read, and nothing would ever free room.
        if not self.has_in_flight():
            self._flow.throttle_full(self._client, route)

    def _restore_in_flight(self, steps: Iterable[Settled]) -> None:
        """Messages that a transaction held are in flight again (or go back, if nobody is there)."""
        for step in steps:
            consumer = step.consumer
            if not self._serving.is_served(consumer):
                self._writer.give_back(step.entries)
                continue
            if len(consumer.lists) == 1:  # some of it may be in no list
                consumer.first_list.changed()
            for entry in step.entries:
                consumer.in_flight[entry[0].sequence] = entry
                consumer.count(1, entry[0].size)
                entry[1].changed()
