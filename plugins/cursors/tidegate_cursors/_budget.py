"""How much memory all cursors of one kind may hold together, and which of them gives it up first.

Above the limit each cursor keeps a small share: a file cursor spools the rest, a vm cursor makes
its producers wait. A store cursor can drop messages from memory, because they are in the store as
well and can be read again. The cursor whose consumers have been idle longest drops first. Each
keeps its small share, so a consumer that keeps up is fed from memory however many others lag.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, final

from tidegate.spi import (
    MESSAGE_OVERHEAD_BYTES,
    CursorContext,
    CursorMemory,
    FeedReason,
    StoredMessage,
)
from tidegate_cursors._ordered_memory import OrderedMemory

#: What each cursor may always hold: a few hundred small messages, or less when there are so many
#: cursors that this would take more than half of the limit.
FLOOR_BYTES: Final = 64 << 10
#: This part of the limit is freed at a time, so that freeing memory is rare.
_STEP: Final = 16
#: A page takes at most this part of what is left.
_PAGE_PART: Final = 4
#: Memory that a page reserves for each message before its size is known: the overhead and a body
#: of about the same size. A page of larger bodies is cut short by its byte limit.
_RESERVED_BYTES: Final = 2 * MESSAGE_OVERHEAD_BYTES
_UNLIMITED: Final = 1 << 62
_PERCENT: Final = 100


class Holder(Protocol):
    """A cursor. *taken_at*: the budget's clock when a message was last taken from it."""

    taken_at: int

    def let_go(self, floor_bytes: int) -> None:
        """Shrink to *floor_bytes* if possible, and tell the budget."""
        ...


class MemoryBudget:
    """Memory held and its limit. All calls on the event loop.

    Cursors of several kinds may share the memory, each kind with a budget of its own.

    Attributes:
        memory: counts the bytes held now. Cursors update it themselves.
        clock: goes up with each message taken. Cursors advance it themselves.
    """

    __slots__ = ("_holders", "_look_at", "clock", "limit_bytes", "memory")

    def __init__(self, memory: CursorMemory) -> None:
        self.limit_bytes = memory.limit_bytes or _UNLIMITED
        self.memory = memory
        self.clock = 0
        self._look_at = self.limit_bytes
        self._holders: set[Holder] = set()

    def join(self, holder: Holder | None = None) -> None:
        """Add a cursor. Args: holder: the cursor, if it can let go."""
        self.memory.cursors += 1
        if holder is not None:
            self._holders.add(holder)

    def leave(self, holder: Holder | None = None) -> None:
        """Remove a closed cursor, which holds nothing any more. Called once per cursor."""
        self.memory.cursors -= 1
        if holder is not None:
            self._holders.discard(holder)

    def begin_page(self, room_bytes: int) -> int:
        """Reserve memory for a page that a cursor with *room_bytes* of room is about to read.

        Returns: the bytes reserved until :meth:`end_page`. Without that, cursors that read at the
            same time would each count on all of the room.
        """
        left = self.limit_bytes - self.memory.used - self.memory.reading
        size = min(room_bytes, max(left // _PAGE_PART, self.floor()))
        self.memory.reading += max(0, size)
        return size

    def end_page(self, size: int) -> None:
        """Release the reservation, whether or not the page was read. Args: size: bytes reserved."""
        self.memory.reading -= max(0, size)

    def floor(self) -> int:
        """What each cursor may always hold."""
        return min(FLOOR_BYTES, self.limit_bytes // (2 * max(1, self.memory.cursors)))

    def make_room(self, asking: Holder) -> None:
        """Get back below the limit, if the cursors can; cheap while already below."""
        if self.memory.used <= self._look_at:
            return
        wanted = self.limit_bytes - self.limit_bytes // _STEP
        floor = self.floor()
        order = sorted(self._holders, key=lambda holder: (holder.taken_at, holder is asking))
        for holder in order:
            if self.memory.used <= wanted:
                break
            holder.let_go(floor)
        # When no cursor can let go, searching again for each message costs more than it gains.
        self._look_at = max(self.limit_bytes, self.memory.used + self.limit_bytes // _STEP)


@final
class Share:
    """One cursor's part of a budget: what it may hold in memory, and what it reads at once.

    Attributes:
        budget: the one it is a part of.
        high_water_bytes: what all may hold together before the cursor takes only what it must.
        limit_count: messages that the cursor may hold in memory.
    """

    __slots__ = (
        "_held",
        "_holder",
        "_is_over",
        "_limit_bytes",
        "_page_bytes",
        "_page_count",
        "_wake",
        "budget",
        "high_water_bytes",
        "limit_count",
    )

    def __init__(
        self, context: CursorContext, budget: MemoryBudget | None, holder: Holder | None = None
    ) -> None:
        """Args: budget: None gives the cursor its own. holder: the cursor, if it can let go."""
        self.budget = budget or MemoryBudget(context.shared_memory)
        self.budget.join(holder)
        self._holder = holder
        self._held = 0  # as last reported to the budget
        self._is_over = False
        self._limit_bytes = context.memory_limit_bytes
        self._page_count = max(1, context.page_count)
        self._page_bytes = context.page_bytes or _UNLIMITED
        self.limit_count = context.memory_limit_messages or _UNLIMITED
        self.high_water_bytes = (
            self.budget.limit_bytes * context.memory_high_water_percent // _PERCENT
        )
        self._wake = context.has_room

    @property
    def allowed(self) -> int:
        """Bytes that the cursor may hold in memory now."""
        memory = self.budget.memory
        if memory.used + memory.reading < self.high_water_bytes:
            return self._limit_bytes
        return min(self._limit_bytes, self.budget.floor())

    @property
    def reason(self) -> FeedReason:
        """Why there is no room, when there is none."""
        is_shared = self.allowed < self._limit_bytes
        return FeedReason.SHARED_LIMIT if is_shared else FeedReason.LIMIT

    def tell(self, held_bytes: int) -> None:
        """Report what the cursor holds now."""
        self.budget.memory.add(held_bytes - self._held)
        self._held = held_bytes

    def wait(self) -> None:
        """The cursor is full. If the shared limit is the reason, it is told when there is room."""
        memory = self.budget.memory
        if memory.used + memory.reading >= self.high_water_bytes:
            memory.when_below(self.high_water_bytes - self.high_water_bytes // _STEP, self._wake)

    def has_room(self, memory: OrderedMemory, others: OrderedMemory | None = None) -> bool:
        """Whether *memory*, and what else the cursor holds, are below all limits."""
        bytes_left, count_left = self._room(memory, others)
        return bytes_left > 0 and count_left > 0

    def is_above(self, memory: OrderedMemory) -> bool:
        """Whether *memory* is above a limit."""
        bytes_left, count_left = self._room(memory, None)
        return bytes_left < 0 or count_left < 0

    def _room(self, memory: OrderedMemory, others: OrderedMemory | None) -> tuple[int, int]:
        bytes_left = self.allowed - memory.memory_bytes
        count_left = self.limit_count - len(memory.messages)
        if others is not None:
            bytes_left -= others.memory_bytes
            count_left -= len(others.messages)
        return bytes_left, count_left

    def page_bounds(self, memory: OrderedMemory) -> tuple[int, int]:
        """Messages, and bytes of them, to read so that they fit behind *memory*."""
        return self._bounds(*self._room(memory, None))

    def _bounds(self, room_bytes: int, room_count: int) -> tuple[int, int]:
        limit = max(1, min(self._page_count, room_count, room_bytes // _RESERVED_BYTES))
        return limit, max(1, min(self._page_bytes, room_bytes - limit * MESSAGE_OVERHEAD_BYTES))

    async def page(
        self,
        read: Callable[[int, int], Awaitable[Sequence[StoredMessage]]],
        memory: OrderedMemory,
        others: OrderedMemory | None = None,
    ) -> Sequence[StoredMessage]:
        """Read a page from the store for *memory*, as large as there is room for.

        Without room nothing is read, unless *memory* is empty: one message must always pass.

        Args: read: called with limits in messages and bytes. others: what else the cursor holds.
        Raises: what *read* raises. Cancellation: safe.
        """
        room_bytes, room_count = self._room(memory, others)
        if min(room_bytes, room_count) <= 0 and memory.messages:
            return ()
        room_bytes = self.budget.begin_page(room_bytes)
        try:
            return await read(*self._bounds(room_bytes, room_count))
        finally:
            self.budget.end_page(room_bytes)

    def end(self) -> None:
        """The cursor is closed and holds nothing. Idempotent."""
        self.tell(0)
        if not self._is_over:
            self._is_over = True
            self.budget.memory.forget(self._wake)
            self.budget.leave(self._holder)
            self._holder = None


class Budgets:
    """The budget that all cursors of one factory have a share of."""

    __slots__ = ("_budget",)

    def __init__(self) -> None:
        self._budget: MemoryBudget | None = None

    def of(self, memory: CursorMemory) -> MemoryBudget:
        """The budget of *memory*; the host gives the same memory to all of them."""
        if self._budget is None or self._budget.memory is not memory:
            self._budget = MemoryBudget(memory)
        return self._budget
