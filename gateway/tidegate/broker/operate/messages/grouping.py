"""Messages of a dead-letter queue, counted by origin and reason; nothing happens to them."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.lists.selector import compile_selector
from tidegate.broker.publish.publisher import (
    DEAD_LETTER_FROM,
    DEAD_LETTER_REASON,
    dead_letter_from,
    dead_letter_reason,
)
from tidegate.broker.turn.walks import SLICE_S
from tidegate.spi import Message, MessageStore, body_bytes
from tidegate.spi.operate import WORK_S, CountDeadLetters, DeadLetterGroup, DeadLetterGroups

#: Read from the store at a time: messages, and bytes of bodies.
_PAGE_COUNT: Final = 256
_PAGE_BYTES: Final = 1 << 20
#: Limits of one answer: a client that can publish there may write different reasons into each message.
_GROUPS_MAX: Final = 1000
_TEXTS_MAX: Final = 1 << 20
#: Characters of a group's selector: half of what a selector may have, so that it can be extended.
SELECTOR_MAX: Final = 2048


class _Group:
    """What is known about a group so far."""

    __slots__ = ("count", "first_at", "last_at", "size")

    def __init__(self, at: int) -> None:
        self.count = self.size = 0
        self.first_at = self.last_at = at

    def add(self, message: Message) -> None:
        self.count += 1
        self.size += body_bytes(message)
        self.first_at = min(self.first_at, message.received_at)
        self.last_at = max(self.last_at, message.received_at)

    def shown(self, origin: str, reason: str) -> DeadLetterGroup:
        selector = _selector(origin, reason)
        return DeadLetterGroup(
            origin, reason, self.count, self.size, self.first_at, self.last_at, selector
        )


async def grouped(
    store: MessageStore,
    pending_list: PendingList,
    request: CountDeadLetters,
    through: int,
    now: int,
) -> DeadLetterGroups:
    """The answer to *request*. Args: through: the last sequence to examine.

    Raises: RequestError for its selector; StoreError. Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + WORK_S
    matches = compile_selector(request.selector)
    groups, room = dict[tuple[str, str], _Group](), _TEXTS_MAX
    after, count, is_complete = request.after, 0, request.after >= through

    def answer() -> DeadLetterGroups:
        shown = [group.shown(*key) for key, group in groups.items()]
        shown.sort(key=lambda group: (-group.count, group.origin, group.reason))
        return DeadLetterGroups(tuple(shown), count, is_complete, after, through)

    while not is_complete and loop.time() < ends_at:
        page = await store.page_in(pending_list.id, after, _PAGE_COUNT, _PAGE_BYTES)
        until = perf_counter() + SLICE_S
        for item in page:
            message = item.message
            if item.sequence > through:
                is_complete = True
                break
            is_over = 0 < message.expires_at <= now
            if not is_over and (matches is None or matches(message)):
                key = dead_letter_from(message), dead_letter_reason(message)
                group = groups.get(key)
                if group is None:
                    room -= len(key[0]) + len(key[1])
                    if groups and (len(groups) >= _GROUPS_MAX or room < 0):
                        return answer()  # before this one
                    group = groups[key] = _Group(message.received_at)
                group.add(message)
            after = item.sequence
            count += 1
            if 0 < request.count_max <= count:
                is_complete = after >= through
                return answer()
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + SLICE_S
        is_complete = is_complete or not page
        await asyncio.sleep(0)
    return answer()


def _selector(origin: str, reason: str) -> str | None:
    """What selects messages with these headers; None: it would be too long for one."""
    parts = [_is(DEAD_LETTER_FROM, origin), _is(DEAD_LETTER_REASON, reason)]
    text = " AND ".join(parts)
    return text if len(text) <= SELECTOR_MAX else None


def _is(header: str, value: str) -> str:
    if not value:
        return f'("{header}" IS NULL OR "{header}" = \'\')'
    quoted = value.replace("'", "''")
    return f"\"{header}\" = '{quoted}'"
