"""What one connection decides about messages: acknowledged, rejected, in a transaction or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.broker.connection.client import Client
from tidegate.broker.connection.serving import Serving, give_back
from tidegate.broker.lists.pending_list import Consumer, InFlight, PendingList
from tidegate.broker.parts import Parts
from tidegate.broker.route.router import Route
from tidegate.broker.transactions.transactions import Outcome, Published, Settled, Transaction
from tidegate.broker.turn.turn import Unit
from tidegate.spi import (
    Acknowledge,
    BranchId,
    GatewayError,
    InflightRecord,
    Message,
    RequestError,
    Token,
    names,
)


class Settling:
    """In-flight messages and open transactions of one connection."""

    __slots__ = ("_client", "_parts", "_serving", "_transactions", "_writer")

    def __init__(self, parts: Parts, client: Client, serving: Serving) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._client = client
        self._serving = serving
        self._transactions: dict[str, Transaction] = {}

    def acknowledge(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
        inflight: InflightRecord | None = None,
    ) -> None:
        consumer = self._serving.consumers.get(key)
        if consumer is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._hold(consumer, entries, Outcome.ACKNOWLEDGED, transaction, token)
            return
        writer = self._writer
        turn = writer.turn
        acknowledged = turn.acknowledged
        last: PendingList | None = None
        group: tuple[list[int], list[int]] = ([], [])
        for message, pending_list, delivered_at in entries:
            if pending_list is not last:
                last = pending_list
                if pending_list.is_stored:
                    group = acknowledged.get((consumer, pending_list)) or ([], [])
                    acknowledged[consumer, pending_list] = group
                else:
                    group = ([], [])
                if pending_list.selecting is not None:
                    pending_list.selecting.leaving(group[0])
            group[0].append(message.sequence)
            group[1].append(delivered_at)
        if inflight is not None:
            self._client.put_inflight(inflight)
        if token is not None:
            turn.units.append(Unit(0, 0, self._client, token))
            turn.synced = True
        if not writer.scheduled:
            writer.schedule()

    def _take_in_flight(self, consumer: Consumer, sequences: Sequence[int]) -> list[InFlight]:
        """Remove and return the entries, all or none. Raises: RequestError."""
        in_flight = consumer.in_flight
        was_full = consumer.is_full()
        entries: list[InFlight] = []
        size = 0
        try:
            for sequence in sequences:
                entry = in_flight.pop(sequence)
                entries.append(entry)
                size += len(entry[0].message.body)
        except KeyError as error:
            for entry in entries:
                in_flight[entry[0].sequence] = entry
            raise RequestError(
                f"message {error.args[0]} is not in flight on subscription {consumer.key!r};"
                " it was acknowledged already or never delivered there"
            ) from None
        consumer.in_flight_bytes -= size
        if was_full:  # any of its lists may have waited for this room
            for pending_list in consumer.lists:
                self._parts.flow.mark_ready(pending_list)
        return entries

    def _restore_in_flight(self, settled: Settled) -> None:
        """Messages that a transaction held are in flight again (or go back, if nobody is there)."""
        consumer = settled.consumer
        if not self._serving.is_served(consumer):
            give_back(self._writer, settled.entries)
            return
        for entry in settled.entries:
            consumer.in_flight[entry[0].sequence] = entry
            consumer.in_flight_bytes += len(entry[0].message.body)

    def reject(
        self,
        key: str,
        sequences: Sequence[int],
        token: Token = None,
        transaction: str | None = None,
    ) -> None:
        consumer = self._serving.consumers.get(key)
        if consumer is None:
            raise RequestError(f"there is no subscription {key!r} on this connection")
        entries = self._take_in_flight(consumer, sequences)
        if transaction is not None:
            self._hold(consumer, entries, Outcome.REJECTED, transaction, token)
            return
        again, moves = self._sort_rejected(entries)
        turn = self._writer.turn
        first = len(turn.operations)
        self._move(moves)
        moved = [entry for entry, _ in moves]
        undo = (lambda: give_back(self._writer, moved),) if moved else ()
        turn.unit(first, self._client, token, undo)
        turn.synced = turn.synced or bool(moves) or token is not None
        give_back(self._writer, again)
        self._writer.schedule()

    def _sort_rejected(
        self, entries: Sequence[InFlight]
    ) -> tuple[list[InFlight], list[tuple[InFlight, PendingList]]]:
        """What is to be redelivered, and what goes to which dead-letter queue.

        Dead-letter queues are made here, outside of any unit: a unit that is dropped because the
        store is full must not take the queue's AddDestination with it.
        """
        again: list[InFlight] = []
        moves: list[tuple[InFlight, PendingList]] = []
        for entry in entries:
            target = self._parts.publisher.dead_letter_list(entry[0], entry[1])
            if target is None:
                again.append(entry)
            else:
                moves.append((entry, target))
        return again, moves

    def _move(self, moves: Sequence[tuple[InFlight, PendingList]]) -> None:
        for (message, pending_list, _), target in moves:
            self._parts.publisher.dead_letter(message, pending_list, target)

    def begin(self, transaction: str) -> None:
        if transaction in self._transactions:
            raise RequestError(f"transaction {transaction!r} is already open")
        limits = self._parts.config
        if len(self._transactions) >= limits.transactions_open_max:
            raise RequestError(
                f"{len(self._transactions)} transactions are open;"
                " that is the limit (broker.transactions_open_max)"
            )
        self._transactions[transaction] = Transaction(limits.transaction_operations_max)

    def commit(self, transaction: str, token: Token = None) -> None:
        held = self._transaction(transaction)
        parts = self._parts
        self._check_commit(transaction, held)
        del self._transactions[transaction]
        moved: list[InFlight] = []
        again: list[InFlight] = []
        moves: list[tuple[InFlight, PendingList]] = []
        for step in held.settled():
            if step.outcome is Outcome.REJECTED:
                to_redeliver, to_move = self._sort_rejected(step.entries)
                again += to_redeliver
                moves += to_move
                moved += [entry for entry, _ in to_move]
        turn = self._writer.turn
        was_synced = turn.synced
        first = len(turn.operations)
        first_sequence = self._writer.next_sequence
        now = self._writer.now()
        undo: list[Callable[[], None]] = []
        routes: list[Route] = []
        for step in held.steps:
            if isinstance(step, Published):
                routes.append(parts.publisher.publish(step.message, self._client.client_id, undo))
                if step.duplicate_id:
                    sequence = self._writer.next_sequence - 1
                    destination = step.message.destination
                    parts.duplicates.add(destination, step.duplicate_id, sequence, undo)
                self._client.put_inflight(step.inflight, undo)
            elif step.outcome is Outcome.ACKNOWLEDGED:
                self._acknowledge_now(step, now)
        self._move(moves)
        acknowledged = [s for s in held.settled() if s.outcome is Outcome.ACKNOWLEDGED]
        end_sequence = self._writer.next_sequence

        def undo_commit() -> None:
            turn.drop_added(first_sequence, end_sequence)  # also what needed no storing
            give_back(self._writer, moved)
            for step in acknowledged:
                self._restore_in_flight(step)

        undo.append(undo_commit)
        turn.unit(first, self._client, token, undo)
        turn.synced = was_synced
        turn.commits = True
        give_back(self._writer, again)
        if turn.body_bytes > parts.flow.turn_bytes_max:
            parts.flow.throttle_unwritten(self._client)
        if parts.flow.full_lists and not self.has_in_flight():
            for route in routes:
                parts.flow.throttle_full(self._client, route)
        self._writer.schedule()

    def _check_commit(self, transaction: str, held: Transaction) -> None:
        """Check that all of it can be done: all or nothing. Raises: GatewayError."""
        self._writer.check_writable()
        parts = self._parts
        published = [step for step in held.steps if isinstance(step, Published)]
        for step in published:  # a temporary one may be gone
            if names.is_temporary(step.message.destination):
                parts.temporary.check_exists(step.message.destination)
        if parts.publisher.has_detours:
            messages = [step.message for step in published]
            parts.publisher.check_together(self._client.client_id, messages)
        ids = [(s.message.destination, s.duplicate_id) for s in published if s.duplicate_id]
        if ids:
            try:
                parts.duplicates.check_new(ids)
            except RequestError:
                self.abort(transaction)
                raise

    def _acknowledge_now(self, step: Settled, now: int) -> None:
        """Add the Acknowledge operations of one transactional step to the filling turn."""
        by_list: dict[PendingList, list[InFlight]] = {}
        for entry in step.entries:
            by_list.setdefault(entry[1], []).append(entry)
        for pending_list, entries in by_list.items():
            if pending_list.selecting is not None:
                pending_list.selecting.leaving([entry[0].sequence for entry in entries])
            if pending_list.is_removed or not pending_list.is_stored:
                continue
            self._writer.turn.operations.append(
                Acknowledge(
                    pending_list.id,
                    tuple(entry[0].sequence for entry in entries),
                    tuple(entry[2] for entry in entries),
                    now,
                    self._client.client_id,
                    step.consumer.subscription_name,
                    self._client.protocol,
                )
            )

    def abort(self, transaction: str, token: Token = None) -> None:
        held = self._transaction(transaction)
        del self._transactions[transaction]
        for step in held.settled():
            self._restore_in_flight(step)
        if token is not None:
            self._writer.confirm(self._client, token)

    def prepare(self, transaction: str, branch_id: BranchId, token: Token = None) -> None:
        held = self._transaction(transaction)
        parts = self._parts
        parts.branches.check_new(branch_id, held)
        self._check_commit(transaction, held)
        del self._transactions[transaction]

        def give_back() -> None:
            for step in held.settled():
                self._restore_in_flight(step)

        owner = (self._client.principal, self._client.client_id, self._client.protocol)
        parts.branches.prepare(
            branch_id, held, self._client, token, owner=owner, give_back=give_back
        )
        if self._writer.turn.body_bytes > parts.flow.turn_bytes_max:
            parts.flow.throttle_unwritten(self._client)

    def _transaction(self, transaction: str) -> Transaction:
        held = self._transactions.get(transaction)
        if held is None:
            raise RequestError(f"there is no open transaction {transaction!r}; BEGIN it first")
        return held

    def _hold(
        self,
        consumer: Consumer,
        entries: list[InFlight],
        outcome: Outcome,
        transaction: str,
        token: Token,
    ) -> None:
        settled = Settled(consumer, entries, outcome)
        try:
            held = self._transaction(transaction)
            held.check_room(len(entries))
        except GatewayError:
            self._restore_in_flight(settled)
            raise
        held.add(settled, len(entries))
        if token is not None:
            self._writer.confirm(self._client, token)

    def abort_all(self) -> None:
        """The connection ends."""
        for transaction in list(self._transactions):
            self.abort(transaction)

    def has_in_flight(self) -> bool:
        """Messages wait for this client's acknowledgement, or for its COMMIT."""
        return bool(self._transactions) or self._serving.has_in_flight()

    def hold_publish(
        self,
        transaction: str,
        message: Message,
        token: Token,
        inflight: InflightRecord | None,
        duplicate_id: str,
    ) -> None:
        """Publish it with the transaction. Raises: GatewayError."""
        parts = self._parts
        held = self._transaction(transaction)
        held.check_room(1)
        if message.retain:
            parts.publisher.retained.check_room(message)
        parts.publisher.resolve(message.destination)  # a bad name must fail now, not at COMMIT
        held.add(Published(message, inflight, duplicate_id), 1)
        if token is not None:
            self._writer.confirm(self._client, token)
