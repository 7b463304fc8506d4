"""Bodies that a store keeps in separate files: streamed out and in, never whole in memory.

In an export such a body is the file ``large/SEQUENCE.body``; the row of its message has the handle
(size and CRC-32C) in the column ``large`` and an empty ``body``. A store that has no such place, or
treats bodies of that size as ordinary ones, gets it with the message.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.spi import Message, MessageStore, StoreIOError
from tidegate.spi.private_files import make_private_directory

DIRECTORY: Final = "large"
_PIECE_BYTES: Final = 1 << 20


def body_path(directory: Path, sequence: int) -> Path:
    """Where the body of message *sequence* is in the export in *directory*."""
    return directory / DIRECTORY / f"{sequence}.body"


def handle_of(message: Message) -> Any:
    """The handle of a body that is not with its message, or None."""
    return getattr(message, "large", None)


def place_of(store: MessageStore) -> Any:
    """Where *store* keeps such bodies, or None when it has no such place."""
    return getattr(store.capabilities, "large_bodies", None)


async def save(place: Any, body: Any, path: Path) -> None:
    """Write the body behind the handle *body* to *path*. Raises: StoreError, OSError."""
    make_private_directory(path.parent)
    reader = place.open(body)
    try:
        with path.open("wb") as file:
            while piece := await reader.read(_PIECE_BYTES):
                file.write(piece)
    finally:
        reader.close()


async def load(place: Any, message: Message, path: Path) -> Message:
    """*message* with its body in *place*, or including it if the store has no such place.

    Raises: StoreIOError when the file is not what the row says; StoreError.
    """
    body = handle_of(message)
    try:
        file = path.open("rb")
    except OSError as error:
        raise StoreIOError(f"{path}: {error.strerror or error}") from error
    with file:
        if place is None or body.size < place.size_min:
            data = file.read()
            _require(len(data) == body.size, path)
            return msgspec.structs.replace(message, body=data, large=None)
        writer = place.create(body.size)
        try:
            size = 0
            while piece := file.read(_PIECE_BYTES):
                size += len(piece)
                _require(size <= body.size, path)
                await writer.write(piece)
            _require(size == body.size, path)
            made = await writer.finish()
        except BaseException:
            writer.abandon()
            raise
    _require(made.checksum == body.checksum, path)
    return msgspec.structs.replace(message, large=made)


def _require(is_whole: bool, path: Path) -> None:
    if not is_whole:
        raise StoreIOError(
            f"{path}: the export is damaged: size or CRC-32C does not match the "
            "message; copy it again"
        )
