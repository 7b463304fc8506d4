"""What the broker minds of messages whose body is in a file of its own.

It is little: the handle travels with the message, counts no memory, and the store knows when nobody
needs the file any more (:mod:`tidegate.spi.storage.large`).
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tidegate.spi import LargeBodies, Message, RequestError

_log = logging.getLogger("tidegate.broker.large")

#: A message whose body is too large for the sinks carries this header in place of it: its size.
OMITTED: Final = "large-body-omitted"

_PIECE_BYTES: Final = 1 << 20


def check_large(message: Message) -> None:
    """Raises: RequestError for a large message that is to be retained or has a body besides.

    Retained messages are kept in memory, and one with an empty body would clear what is retained.
    """
    if message.large is None:
        return
    if message.retain:
        raise RequestError(
            f"a message with a body of {message.large.size} bytes cannot be retained: retained"
            " messages are kept in memory, and the store streams bodies of this size"
        )
    if message.body:
        raise RequestError("a message has either a body or a large body")


async def whole(message: Message, bodies: LargeBodies, limit: int) -> Message:
    """A large *message* as an ordinary one, for sinks, which take bodies in memory.

    Args: limit: bytes that a body may have; a larger one is left out, and a header says so.
    Raises: CorruptRecordError, StoreError. Cancellation: safe.
    """
    large = message.large
    assert large is not None, "only a large message has its body elsewhere"
    if large.size > limit:
        _log.warning(
            "body_bytes=%d destination=%s: too large for the sinks, its row has no body"
            " (broker.acknowledged_body_max)",
            large.size,
            message.destination,
        )
        headers = (*message.headers, (OMITTED, str(large.size)))
        return msgspec.structs.replace(message, headers=headers, large=None)
    reader = bodies.open(large)
    body = bytearray()
    try:
        while data := await reader.read(_PIECE_BYTES):
            body += data
    finally:
        reader.close()
    return msgspec.structs.replace(message, body=bytes(body), large=None)
