"""Pending lists whose owner was lost with a damaged or missing part of the journal.

That a queue has list 7 is said once, in the batch that made the queue, and in every checkpoint after
it. When that batch was damaged before the next checkpoint, the messages of later batches are in a
list of nobody: whole, pending, and out of everybody's reach. Every message says where it was sent to,
so a queue gets its list back. A subscription cannot: it is named in the report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from tidegate.spi import AddDestination, CorruptRecordError, Message, Operation
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.start.lossreport import LossReport

_QUEUE: Final = "queue://"
#: Temporary queues end with their connection.
_TEMPORARY: Final = "queue://$"
_LOOK_MAX: Final = 20
_ANY_SIZE: Final = 1 << 62


async def adopt_lists(
    index: Index,
    read: Callable[[Sequence[tuple[int, int]]], Awaitable[list[Message]]],
    write: Callable[[list[Operation]], Awaitable[None]],
    report: LossReport,
) -> None:
    """Give lists of nobody back to the queues that their messages name, and report the others.

    For the event loop, before anybody uses the store. Raises: StoreError, OSError.
    """
    owned = {*index.destinations.values(), *index.subscriptions}
    owned.update(branch.pending_list for branch in index.branches.values())
    for list_id in sorted(set(index.lists) - owned):
        pending = index.lists[list_id]
        if not len(pending):
            continue
        names = await _names_in(pending.page(0, _LOOK_MAX, _ANY_SIZE), read)
        name = names.pop() if len(names) == 1 else ""
        count = len(pending)
        is_queue = name.startswith(_QUEUE) and not name.startswith(_TEMPORARY)
        if is_queue and name not in index.destinations:
            await write([AddDestination(name, list_id)])
            report.add_note(
                f"That {name} has list {list_id} was lost; its messages say so too, and {count} "
                "of them are pending again."
            )
            continue
        report.add_note(
            f"{count} messages are pending in list {list_id}, and who had that list was lost"
            + (f"; they were sent to {name}" if name else "")
            + ". Nobody gets them; `tidegate journal inspect` shows them."
        )


async def _names_in(
    page: Sequence[tuple[int, int]],
    read: Callable[[Sequence[tuple[int, int]]], Awaitable[list[Message]]],
) -> set[str]:
    """The destinations of the messages of *page* that can be read."""
    names: set[str] = set()
    for item in page:
        try:
            names.update(message.destination for message in await read([item]))
        except CorruptRecordError:
            continue
    return names
