"""What the broker minds of messages whose body is in a file of its own.

It is little: the handle travels with the message, counts no memory, and the store knows when nobody
needs the file any more (:mod:`tidegate.spi.large`).
"""

from __future__ import annotations

from tidegate.spi import Message, RequestError


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
