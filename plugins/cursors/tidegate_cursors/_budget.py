"""What all cursors of one kind may hold in memory together, and who lets go of it first.

Above the limit a small part is left to everyone: a file cursor spools the rest, a vm cursor's
producers wait. A message that a store cursor holds is in the store as well, so letting go of it costs no more than
reading it again. Whose consumers have taken nothing for the longest time lets go first; a small part
stays with everyone, so that a consumer that keeps up is fed from memory however many others do not.
"""

from __future__ import annotations

from typing import Final, Protocol

from tidegate.spi import CursorMemory

#: What each cursor may hold in any case: some hundred small messages; less where there are so many
#: cursors that this would take more than half of the limit.
FLOOR_BYTES: Final = 64 << 10
#: Room is made for this part of the limit at once, so that looking for it is rare.
_STEP: Final = 16
#: A page takes at most this part of what is left.
_PAGE_PART: Final = 4


class Holder(Protocol):
    """A cursor. *taken_at*: the budget's clock when something was last taken from it."""

    taken_at: int

    def let_go(self, floor_bytes: int) -> None:
        """Hold no more than *floor_bytes*, as far as possible; tells the budget."""
        ...


class MemoryBudget:
    """Memory held and its limit. All calls on the event loop.

    Attributes:
        memory: with the bytes that are held now. Cursors change them themselves.
        clock: counts up with whatever is taken. Cursors count themselves.
    """

    __slots__ = ("_count", "_holders", "_look_at", "_set_aside", "clock", "limit_bytes", "memory")

    def __init__(self, memory: CursorMemory) -> None:
        self.limit_bytes = memory.limit_bytes or 1 << 62
        self.memory = memory
        self.clock = 0
        self._count = 0
        self._set_aside = 0  # for pages that are being read
        self._look_at = self.limit_bytes
        self._holders: set[Holder] = set()

    def join(self, holder: Holder | None = None) -> None:
        """A new cursor. Args: holder: itself, if it can let go."""
        self._count += 1
        if holder is not None:
            self._holders.add(holder)

    def leave(self, holder: Holder | None = None) -> None:
        """A cursor was closed, which is said once; it holds nothing any more."""
        self._count -= 1
        if holder is not None:
            self._holders.discard(holder)

    def begin_page(self, room_bytes: int) -> int:
        """A cursor is about to read a page, for which it has so much room.

        Returns: how much of that, which is set aside until :meth:`end_page`: many cursors may read
            at the same time, and each would find all of the room.
        """
        left = self.limit_bytes - self.memory.used - self._set_aside
        size = min(room_bytes, max(left // _PAGE_PART, self._floor()))
        self._set_aside += max(0, size)
        return size

    def end_page(self, size: int) -> None:
        """It was read, or not. Args: size: what was set aside."""
        self._set_aside -= max(0, size)

    def allowed(self, limit_bytes: int) -> int:
        """What a cursor with this limit of its own may hold now."""
        is_below = self.memory.used + self._set_aside < self.limit_bytes
        return limit_bytes if is_below else min(limit_bytes, self._floor())

    def _floor(self) -> int:
        return min(FLOOR_BYTES, self.limit_bytes // (2 * max(1, self._count)))

    def make_room(self, asking: Holder) -> None:
        """Below the limit again, if the cursors can; cheap while they need not."""
        if self.memory.used <= self._look_at:
            return
        wanted = self.limit_bytes - self.limit_bytes // _STEP
        floor = self._floor()
        order = sorted(self._holders, key=lambda holder: (holder.taken_at, holder is asking))
        for holder in order:
            if self.memory.used <= wanted:
                break
            holder.let_go(floor)
        # When nobody can let go, looking again with each message would cost more than it brings.
        self._look_at = max(self.limit_bytes, self.memory.used + self.limit_bytes // _STEP)
