"""Messages of a queue as an operator sees them: a page at a time, without consuming them."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.lists.selector import compile_selector
from tidegate.broker.turn.walks import SLICE_S
from tidegate.spi import LargeBodies, Message, MessageStore, StoredMessage, StoreError, body_bytes
from tidegate.spi.operate import WORK_S, BrowsedMessage, BrowseMessages, MessagePage

#: Read from the store at a time: messages, and bytes of bodies.
_PAGE_COUNT: Final = 100
_PAGE_BYTES: Final = 1 << 20
#: Bytes of bodies in one answer; the last one may go beyond.
_ANSWER_BYTES: Final = 1 << 20


async def browse(
    store: MessageStore, pending_list: PendingList, request: BrowseMessages, now: int
) -> MessagePage:
    """The answer to *request*. Raises: RequestError for its selector; StoreError. Cancellation: safe."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + WORK_S
    matches = compile_selector(request.selector)
    in_flight = {
        entry[0].sequence
        for consumer in pending_list.all_consumers()
        for entry in consumer.in_flight.values()
        if entry[1] is pending_list
    }
    after, rows, size = request.after, list[BrowsedMessage](), 0
    while loop.time() < ends_at:
        count = _PAGE_COUNT if matches else min(_PAGE_COUNT, request.limit - len(rows) + 1)
        page = await store.page_in(pending_list.id, after, count, _PAGE_BYTES)
        if not page:
            return MessagePage(tuple(rows))
        until = perf_counter() + SLICE_S
        for item in page:
            if len(rows) >= request.limit or size >= _ANSWER_BYTES:
                return MessagePage(tuple(rows), after)
            after = item.sequence
            is_over = 0 < item.message.expires_at <= now
            if not is_over and (matches is None or matches(item.message)):
                rows.append(await _shown(item, store, request.body_bytes, in_flight))
                size += len(rows[-1].body)
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + SLICE_S
        await asyncio.sleep(0)
    return MessagePage(tuple(rows), after)


async def _shown(
    item: StoredMessage, store: MessageStore, count: int, in_flight: set[int]
) -> BrowsedMessage:
    message, problem = item.message, ""
    body = message.body[:count]
    if message.large is not None and count:
        try:
            body = await _beginning(message, store.capabilities.large_bodies, count)
        except StoreError as error:
            problem = str(error)
    return BrowsedMessage(
        sequence=item.sequence,
        body=bytes(body),
        size=body_bytes(message),
        problem=problem,
        delivery_count=item.delivery_count,
        is_in_flight=item.sequence in in_flight,
        headers=message.headers,
        received_at=message.received_at,
        expires_at=message.expires_at,
        priority=message.priority,
        persistent=message.persistent,
        protocol=message.protocol,
        client_id=message.client_id,
        owner=message.owner,
        content_type=message.content_type,
        correlation_data=message.correlation_data,
        reply_to=message.reply_to,
    )


async def _beginning(message: Message, bodies: LargeBodies | None, count: int) -> bytes:
    """The first bytes of a body that is in a separate file. Raises: StoreError."""
    assert bodies is not None, "the store has made it"
    assert message.large is not None
    reader = bodies.open(message.large)
    found = b""
    try:
        while len(found) < count:
            data = await reader.read(count - len(found))
            if not data:
                break
            found += data
    finally:
        reader.close()
    return found
