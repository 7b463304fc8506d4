"""Turns a batch into the rows of one transaction.

Operations of a batch see those before them, but the database gets all rows of a kind at once. So
the batch is applied to itself first: a message added and acknowledged in one batch is never
written, the last of several values for a key wins, and what is left has no order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    ClearRetained,
    Discard,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    Message,
    Move,
    Operation,
    PluginContractError,
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
    Session,
    SetRetained,
    Subscription,
)
from tidegate_store_jdbc.database.adapter import Row, Step
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.rows.codec import Columns

_ZERO: Final = itertools.repeat(0)
_ONCE: Final = itertools.repeat(1)
_K = TypeVar("_K")
_V = TypeVar("_V")

#: (list, sequence).
Place = tuple[int, int]
InflightKey = tuple[str, InflightDirection, int]
#: The last value of each key; None: to be removed.
_Last = dict[_K, _V | None]


class Plan(msgspec.Struct, eq=False):
    """What is left to write after a batch was applied to itself.

    Attributes:
        last_sequence, last_list: highest numbers seen, 0 when none.
        messages: sequence -> (message, number of lists it was added to).
        pending: (list, sequence) that the batch adds -> delivery count.
        removed: (list, sequence) that left a list and were there before, in order.
        left: sequences of *removed*, whose messages perhaps no list holds any more.
        discarded: those of *left* that were removed without an acknowledgement.
        dropped: sequences of *messages* that already left one of their lists.
        log: rows of the acknowledged log.
        ack_last: highest number of the acknowledged log that was given out.
        removed_lists: lists removed with all their contents.
        references: sequence -> where the body is kept, for messages whose body is not stored.

    A plan may be built from any number of batches, one after the other (:func:`plan`).
    """

    ack_last: int = 0
    references: dict[int, int] = {}
    last_sequence: int = 0
    last_list: int = 0
    messages: dict[int, tuple[Message, int]] = {}
    pending: dict[Place, int] = {}
    removed: dict[Place, None] = {}
    left: set[int] = set()
    discarded: set[int] = set()
    dropped: set[int] = set()
    log: list[Row] = []
    deliveries: dict[Place, int] = {}
    removed_lists: list[int] = []
    destinations: _Last[str, AddDestination] = {}
    subscriptions: _Last[int, Subscription] = {}
    sessions: _Last[str, Session] = {}
    cleared_sessions: set[str] = set()
    inflight: _Last[InflightKey, InflightRecord] = {}
    retained: _Last[str, Message] = {}
    branches: _Last[BranchId, Branch] = {}
    duplicate_ids: dict[tuple[str, int], AddDuplicateId] = {}
    forgotten_ids: dict[str, int] = {}


def plan(
    operations: Iterable[Operation], columns: Columns, made: Plan, *, keep_acknowledged: bool
) -> Plan:
    """Apply *operations* to themselves, after those already in *made*.

    Returns: *made*.
    Raises: PluginContractError for an operation that this store does not know.
    """
    for operation in operations:
        kind = type(operation)
        if kind is AddMessage:
            assert isinstance(operation, AddMessage)
            _add(made, operation.sequence, operation.message, operation.pending_lists)
        elif kind is Acknowledge:
            assert isinstance(operation, Acknowledge)
            _leave(made, operation.pending_list, operation.sequences)
            if keep_acknowledged:
                _log(made, operation, columns)
        else:
            _plan_rare(made, operation, columns, keep_acknowledged=keep_acknowledged)
    return made


def _add(made: Plan, sequence: int, message: Message, lists: Sequence[int]) -> None:
    made.messages[sequence] = (message, len(lists))
    made.last_sequence = max(made.last_sequence, sequence)
    for pending_list in lists:
        made.pending[pending_list, sequence] = 0


def _leave(made: Plan, pending_list: int, sequences: Sequence[int]) -> None:
    if not made.pending:
        made.left.update(sequences)
        made.removed.update(dict.fromkeys(zip(itertools.repeat(pending_list), sequences)))
        return
    take, left, removed = made.pending.pop, made.left.add, made.removed
    for sequence in sequences:
        place = (pending_list, sequence)
        if take(place, None) is None:
            left(sequence)
            removed[place] = None
        else:
            made.dropped.add(sequence)


def _log(made: Plan, operation: Acknowledge, columns: Columns) -> None:
    number = made.ack_last
    text = columns.whole  # the gateway reads these columns
    who = (
        text(operation.client_id),
        text(operation.subscription),
        operation.protocol,
        text(operation.principal),
    )
    how = (int(operation.outcome), text(operation.reason))
    pending_list, acked_at = operation.pending_list, operation.acked_at
    times: Iterable[int] = operation.delivered_at or _ZERO
    counts: Iterable[int] = operation.delivery_counts or _ONCE
    for sequence, delivered_at, count in zip(operation.sequences, times, counts, strict=False):
        number += 1
        made.log.append((number, sequence, pending_list, delivered_at, acked_at, *who, count, *how))
    made.ack_last = number


def _plan_rare(
    made: Plan, operation: Operation, columns: Columns, *, keep_acknowledged: bool
) -> None:
    match operation:
        case Discard(pending_list, sequences):
            _leave(made, pending_list, sequences)
            made.discarded.update(made.left.intersection(sequences))
        case Move(pending_list, sequence, target_list, target_sequence, message, row):
            _leave(made, pending_list, (sequence,))
            if row is not None and keep_acknowledged:
                _log(made, row, columns)
            elif sequence in made.left:
                made.discarded.add(sequence)
            _add(made, target_sequence, message, (target_list,))
        case RecordDelivery(pending_list, sequences, counts):
            for sequence, count in zip(sequences, counts, strict=True):
                place = (pending_list, sequence)
                into = made.pending if place in made.pending else made.deliveries
                into[place] = count
        case AddDestination(name, pending_list):
            made.destinations[name] = operation
            made.last_list = max(made.last_list, pending_list)
        case RemoveDestination(name, pending_list):
            made.destinations[name] = None
            if pending_list:
                made.removed_lists.append(pending_list)
        case PutSubscription(subscription):
            made.subscriptions[subscription.pending_list] = subscription
            made.last_list = max(made.last_list, subscription.pending_list)
        case RemoveSubscription(pending_list):
            made.subscriptions[pending_list] = None
            made.removed_lists.append(pending_list)
        case _:
            _plan_session(made, operation)


def _plan_session(made: Plan, operation: Operation) -> None:
    match operation:
        case PutInflight(record):
            made.inflight[record.session, record.direction, record.packet_id] = record
        case RemoveInflight(session, direction, packet_id):
            made.inflight[session, direction, packet_id] = None
        case SetRetained(message):
            made.retained[message.destination] = message
        case ClearRetained(destination):
            made.retained[destination] = None
        case PutSession(session):
            made.sessions[session.key] = session
        case RemoveSession(session_key):
            made.sessions[session_key] = None
            made.cleared_sessions.add(session_key)
            for place in [place for place in made.inflight if place[0] == session_key]:
                del made.inflight[place]
        case PutBranch(branch):
            made.branches[branch.branch_id] = branch
            made.last_list = max(made.last_list, branch.pending_list)
        case RemoveBranch(branch_id, pending_list):
            made.branches[branch_id] = None
            if pending_list:
                made.removed_lists.append(pending_list)
        case AddDuplicateId(destination, _, sequence):
            made.duplicate_ids[destination, sequence] = operation
            made.last_sequence = max(made.last_sequence, sequence)
        case ForgetDuplicateIds(destination, through):
            made.forgotten_ids[destination] = max(through, made.forgotten_ids.get(destination, 0))
            for place in list(made.duplicate_ids):
                if place[0] == destination and place[1] <= through:
                    del made.duplicate_ids[place]
        case _:
            raise PluginContractError("store-jdbc", f"unknown operation {type(operation).__name__}")


class Written(msgspec.Struct):
    """The steps of a plan, and where to find the results that change the counters.

    Attributes:
        added: messages that the batch stores and a list holds.
        log_bytes: body bytes of those that it stores for the acknowledged log only.
        removed_at: index in the results of the number of deleted messages, or -1.
        counted_at: index of the rows of ``count_old_messages_statement``, or -1.
        dead_at: index of the rows of ``find_dead_messages_statement``, or -1.
    """

    steps: list[Step] = []
    added: int = 0
    log_bytes: int = 0
    removed_at: int = -1
    counted_at: int = -1
    dead_at: int = -1


def steps(
    made: Plan, columns: Columns, *, keep_acknowledged: bool, tell_dead: bool = False
) -> Written:
    """The statements that write a plan, ordered so that none depends on a later one.

    Args: tell_dead: ask for the messages that are about to be deleted.
    """
    written = Written()
    result = written.steps
    _message_steps(made, columns, written, keep_acknowledged=keep_acknowledged)
    if made.removed:
        result.append(Step("remove_pending_statement", list(made.removed)))
    if made.deliveries:
        rows = [(count, *place) for place, count in made.deliveries.items()]
        result.append(Step("update_message_statement", rows))
    if made.log:
        result.append(Step("add_acknowledged_statement", made.log))
    if made.left:
        left = [(sequence,) for sequence in sorted(made.left)]
        dead = left if not keep_acknowledged else [(n,) for n in sorted(made.discarded)]
        if tell_dead and dead:
            written.dead_at = len(result)
            result.append(Step("find_dead_messages_statement", dead, fetch=True))
        if not keep_acknowledged:
            written.removed_at = len(result)
            result.append(Step("remove_message_statement", left))
        else:
            written.counted_at = len(result)
            result.append(Step("count_old_messages_statement", left, fetch=True))
            if made.discarded:
                rows = [(sequence,) for sequence in sorted(made.discarded)]
                result.append(Step("delete_old_messages_statement", rows))
    _binding_steps(made, columns, result)
    return written


def _message_steps(
    made: Plan, columns: Columns, written: Written, *, keep_acknowledged: bool
) -> None:
    """Skip messages that nothing holds at the end of the batch, not even the log."""
    if not made.messages:
        return
    messages = made.messages
    if made.removed_lists:
        gone = set(made.removed_lists)
        for place in [place for place in made.pending if place[0] in gone]:
            del made.pending[place]
            made.dropped.add(place[1])
    held = {sequence for _, sequence in made.pending} if made.dropped else messages.keys()
    logged = {row[1] for row in made.log} if keep_acknowledged else set[int]()
    rows: list[Row] = []
    for sequence, (message, lists) in messages.items():
        if sequence in held:
            written.added += 1
        elif sequence in logged:
            written.log_bytes += len(message.body)
        else:
            continue
        rows.append(columns.message(sequence, message, lists, made.references.get(sequence)))
    if rows:
        written.steps.append(Step("add_message_statement", rows))
    pending: list[Row] = []
    for (pending_list, sequence), count in made.pending.items():
        message, lists = messages[sequence]
        pending.append((pending_list, sequence, count, len(message.body), int(lists > 1)))
    if pending:
        written.steps.append(Step("add_pending_statement", pending))


def _binding_steps(made: Plan, columns: Columns, result: list[Step]) -> None:
    def put(
        add: str,
        remove: str,
        values: _Last[_K, _V],
        row: Callable[[_V], Row],
        key: Callable[[_K], Row],
    ) -> None:
        removed = [key(name) for name, value in values.items() if value is None]
        if removed:
            result.append(Step(f"{remove}_statement", removed))
        added = [row(value) for value in values.values() if value is not None]
        if added:
            result.append(Step(f"{add}_statement", added))

    def by_name(name: object) -> Row:
        return (codec.key(str(name)),)

    put("add_destination", "remove_destination", made.destinations, columns.destination, by_name)
    put(
        "create_durable_sub",
        "delete_subscription",
        made.subscriptions,
        columns.subscription,
        lambda number: (number,),
    )
    if made.cleared_sessions:
        sessions = [by_name(name) for name in made.cleared_sessions]
        result.append(Step("remove_all_inflight_statement", sessions))
    put("add_session", "remove_session", made.sessions, columns.session, by_name)
    put(
        "add_inflight",
        "remove_inflight",
        made.inflight,
        columns.inflight,
        lambda place: codec.inflight_key(*place),
    )
    put("add_retained", "remove_retained", made.retained, columns.retained, by_name)
    put("add_branch", "remove_branch", made.branches, columns.branch, by_name)
    if made.forgotten_ids:
        forgotten = [(codec.key(name), through) for name, through in made.forgotten_ids.items()]
        result.append(Step("forget_duplicate_ids_statement", forgotten))
    if made.duplicate_ids:
        ids = [columns.duplicate_id(value) for value in made.duplicate_ids.values()]
        result.append(Step("add_duplicate_id_statement", ids))
    if made.removed_lists:
        lists = [(number,) for number in sorted(set(made.removed_lists))]
        result.append(Step("add_removed_statement", lists))
