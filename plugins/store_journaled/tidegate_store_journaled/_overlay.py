"""What the journal holds and the database does not, merged so that only the outcome is written.

A message that is added and acknowledged in one overlay is forgotten. The rest is a plan of the SQL
store, which carries it out in one transaction at the next checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tidegate.spi import Acknowledge, AddMessage, Message, Move, Operation
from tidegate_store_jdbc import Plan

#: (list, sequence), as the keys of a plan.
Place = tuple[int, int]


class _Lane:
    """Sequences of one list in order. Removed ones are skipped, and dropped from the front."""

    __slots__ = ("head", "sequences")

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.head = 0

    def behind(self, after: int, number: int, pending: dict[Place, int]) -> Iterator[int]:
        """Pending sequences above *after*, in order. *number*: the list's."""
        sequences = self.sequences
        head, end = self.head, len(sequences)
        while head < end and (number, sequences[head]) not in pending:
            head += 1
        self.head = head
        for at in range(bisect_right(sequences, after, head), end):
            sequence = sequences[at]
            if (number, sequence) in pending:
                yield sequence


class Overlay:
    """See the module.

    Args: ack_last: the highest number of the acknowledged log before it.
    Attributes:
        plan: what to write to the database.
        records: numbers of the journal's records merged here.
        position: the last of them, 0 when there is none.
        size_bytes: their size, with the bodies stored beside them.
    """

    __slots__ = ("_lanes", "keeps_log", "plan", "position", "records", "size_bytes")

    def __init__(self, ack_last: int, *, keeps_log: bool) -> None:
        self.plan = Plan(ack_last)
        self.keeps_log = keeps_log
        self.records: list[int] = []
        self.position = 0
        self.size_bytes = 0
        self._lanes: dict[int, _Lane] = {}

    def add_record(self, number: int, size_bytes: int) -> None:
        """Count record *number* of the journal as merged."""
        self.records.append(number)
        self.position = number
        self.size_bytes += size_bytes

    def note(self, operations: Sequence[Operation]) -> None:
        """Note the order of the messages that *operations*, already in the plan, added.

        Messages that nothing needs any more are dropped at once, so memory follows what is
        pending.
        """
        forget = not self.keeps_log
        messages = self.plan.messages
        for operation in operations:
            kind = type(operation)
            if kind is AddMessage:
                assert isinstance(operation, AddMessage)
                sequence = operation.sequence
                for number in operation.pending_lists:
                    self._lane(number).append(sequence)
            elif kind is Acknowledge and forget:
                assert isinstance(operation, Acknowledge)
                for sequence in operation.sequences:
                    found = messages.get(sequence)
                    if found is not None and found[1] == 1:
                        del messages[sequence]
                        self.plan.dropped.discard(sequence)
            elif kind is Move:
                assert isinstance(operation, Move)
                self._lane(operation.target_list).append(operation.target_sequence)

    def _lane(self, number: int) -> list[int]:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane()
        return lane.sequences

    def page(self, number: int, after: int) -> Iterator[tuple[int, Message, int]]:
        """Pending messages of a list: (sequence, message, delivery count), in order."""
        lane = self._lanes.get(number)
        if lane is not None:
            pending, messages = self.plan.pending, self.plan.messages
            for sequence in lane.behind(after, number, pending):
                yield sequence, messages[sequence][0], pending[number, sequence]

    def release(self, through: int) -> None:
        """Rows of the acknowledged log up to *through* need not be written."""
        plan = self.plan
        kept = 0
        for row in plan.log:
            if row[0] > through:
                break
            kept += 1
            sequence = row[1]
            if sequence in plan.left:
                # No row of the log will be left to say that it may be deleted.
                plan.discarded.add(sequence)
        del plan.log[:kept]
        if kept:
            self._forget_unlogged()

    def _forget_unlogged(self) -> None:
        plan = self.plan
        held = {sequence for _, sequence in plan.pending}
        held.update(row[1] for row in plan.log)
        for sequence in [sequence for sequence in plan.dropped if sequence not in held]:
            plan.dropped.discard(sequence)
            plan.messages.pop(sequence, None)

    @property
    def log_bytes(self) -> int:
        """Body bytes of the messages that only the acknowledged log holds."""
        if not self.plan.log:
            return 0
        plan = self.plan
        held = {sequence for _, sequence in plan.pending}
        logged = {row[1] for row in plan.log} - held
        return sum(len(plan.messages[n][0].body) for n in logged if n in plan.messages)
