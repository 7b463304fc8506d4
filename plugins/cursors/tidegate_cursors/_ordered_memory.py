"""Messages in memory, in sequence order: the part of every cursor that consumers are fed from.

New messages and returned ones share one structure. Messages are taken from the front, so every
message ever taken has a lower sequence than every one never taken: a returned message belongs in
front of, or among, other returned messages, never further behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, StoredMessage

_sequence_of: Final = attrgetter("sequence")

#: Up to this many messages are looked up one by one instead of scanning all of them.
_SINGLY_MAX: Final = 64
#: What one look-up costs, in messages scanned: some 10 microseconds.
_SINGLY_COST: Final = 200


class OrderedMemory:
    """A deque of messages in sequence order that tracks how much memory they take.

    Attributes:
        messages: in sequence order, except for returned ones in front that have not been sorted
            in yet, see :meth:`in_order`. Read it; change it only through the methods.
        body_bytes: bytes of their bodies.
    """

    __slots__ = ("_back_to", "_mixed", "body_bytes", "messages")

    def __init__(self) -> None:
        self.messages: deque[StoredMessage] = deque()
        self.body_bytes = 0
        self._mixed = 0  # messages in front that are not in order
        self._back_to = 0  # the highest sequence among them

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def memory_bytes(self) -> int:
        """What the messages count as (:func:`tidegate.spi.memory_bytes` of each)."""
        return self.body_bytes + len(self.messages) * MESSAGE_OVERHEAD_BYTES

    def append(self, messages: Sequence[StoredMessage]) -> int:
        """Add *messages* at the end; their sequences are above all that are here.

        Returns: bytes of their bodies and headers.
        """
        size = sum([message.size for message in messages])
        self.messages.extend(messages)
        self.body_bytes += size
        return size

    def append_within(
        self, messages: Sequence[StoredMessage], limit_bytes: int, limit_count: int
    ) -> int:
        """Add as many of the first *messages* as *limit_bytes* of memory, and *limit_count*, allow.

        One message is always taken when the memory is empty: a message above the limit must be
        able to pass.

        Returns: how many were added.
        """
        queue = self.messages
        count = len(messages)
        body_bytes = sum([message.size for message in messages]) + self.body_bytes
        held = len(queue) + count
        if held <= limit_count and body_bytes + held * MESSAGE_OVERHEAD_BYTES <= limit_bytes:
            queue.extend(messages)
            self.body_bytes = body_bytes
            return count
        return self._append_part(messages, limit_bytes, limit_count)

    def _append_part(
        self, messages: Sequence[StoredMessage], limit_bytes: int, limit_count: int
    ) -> int:
        used = self.memory_bytes
        for index, message in enumerate(messages):
            size = message.size + MESSAGE_OVERHEAD_BYTES
            if self.messages and (used + size > limit_bytes or len(self.messages) >= limit_count):
                return index
            used += size
            self.messages.append(message)
            self.body_bytes += size - MESSAGE_OVERHEAD_BYTES
        return len(messages)

    def take(self, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        """Remove and return the first messages; see :meth:`tidegate.spi.PendingCursor.take`."""
        queue = self.in_order() if self._mixed else self.messages
        if not queue or limit < 1:
            return ()
        if limit >= len(queue) and self.body_bytes <= bytes_max:
            taken = list(queue)
            queue.clear()
            self.body_bytes = 0
            return taken
        take_first = queue.popleft
        first = take_first()
        taken = [first]
        size = first.size
        for _ in range(min(limit - 1, len(queue))):
            size += queue[0].size
            if size > bytes_max:
                size -= queue[0].size
                break
            taken.append(take_first())
        self.body_bytes -= size
        return taken

    def put_back(self, messages: Sequence[StoredMessage]) -> None:
        """Return taken messages to their places; they may come in any order.

        They are sorted in lazily: when three hundred consumers are lost at once, each with a
        thousand messages, everything is sorted once.
        """
        if not messages:
            return
        returned = sorted(messages, key=_sequence_of)
        last = returned[-1].sequence
        queue = self.messages
        if self._mixed or (queue and queue[0].sequence < last):
            self._mixed += len(returned)
            self._back_to = max(self._back_to, last)
        queue.extendleft(reversed(returned))
        self.body_bytes += sum([message.size for message in messages])

    def in_order(self) -> deque[StoredMessage]:
        """``messages``, all of them in sequence order."""
        queue, count = self.messages, self._mixed
        if not count:
            return queue
        take_first = queue.popleft
        returned = [take_first() for _ in range(count)]
        last, self._back_to, self._mixed = self._back_to, 0, 0
        far = count * _SINGLY_COST
        if far < len(queue) and queue[far].sequence < last:
            for message in returned:
                queue.insert(bisect_left(queue, message.sequence, key=_sequence_of), message)
            return queue
        while queue and queue[0].sequence < last:
            returned.append(take_first())
        returned.sort(key=_sequence_of)  # runs that are sorted already: they are merged
        queue.extendleft(reversed(returned))
        return queue

    def claim(self, sequences: set[int]) -> set[int]:
        """Take the messages with these sequences. Returns the sequences of those that are here."""
        queue = self.in_order()
        found: set[int] = set()
        while queue and queue[0].sequence in sequences:  # claims of everything begin at the front
            message = queue.popleft()
            self.body_bytes -= message.size
            found.add(message.sequence)
        sequences = sequences - found
        if not sequences or not queue:
            return found
        if len(sequences) <= _SINGLY_MAX:
            found.update([sequence for sequence in sequences if self._take_out(sequence)])
            return found
        kept: deque[StoredMessage] = deque()
        for message in queue:
            if message.sequence in sequences:
                self.body_bytes -= message.size
                found.add(message.sequence)
            else:
                kept.append(message)
        self.messages = kept
        return found

    def _take_out(self, sequence: int) -> bool:
        queue = self.messages
        index = bisect_left(queue, sequence, key=_sequence_of)
        if index == len(queue) or queue[index].sequence != sequence:
            return False
        self.body_bytes -= queue[index].size
        del queue[index]
        return True

    def remove(self, sequences: set[int]) -> int:
        """Remove the messages with these sequences. Returns how many there were."""
        queue = self.in_order()
        before = len(queue)
        while queue and queue[0].sequence in sequences:  # expiry and purge begin at the front
            self.body_bytes -= queue.popleft().size
        removed = before - len(queue)
        if removed == len(sequences) or not queue or max(sequences) < queue[0].sequence:
            return removed
        if len(sequences) * _SINGLY_COST < len(queue):
            return removed + sum(map(self._take_out, sequences))
        kept = [message for message in queue if message.sequence not in sequences]
        if len(kept) != len(queue):
            self.messages = deque(kept)
            self.body_bytes = sum([message.size for message in kept])
        return before - len(kept)

    def drop_behind(self, sequence: int, floor_bytes: int) -> int:
        """Remove messages after *sequence* from the end until *floor_bytes* are left.

        One message stays, however large: it must be able to pass. So does any message that was
        delivered before, and all in front of it: the store may not know its delivery count yet.

        Returns: how many.
        """
        queue = self.in_order()
        before = len(queue)
        while len(queue) > 1 and self.memory_bytes > floor_bytes:
            last = queue[-1]
            if last.sequence <= sequence or last.delivery_count:
                break
            self.body_bytes -= queue.pop().size
        return before - len(queue)

    def clear(self) -> None:
        """Forget everything."""
        self.messages.clear()
        self.body_bytes = self._mixed = self._back_to = 0
