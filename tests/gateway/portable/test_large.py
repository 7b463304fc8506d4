"""Bodies in files of their own stream out of one store and into another."""

import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.portable._large import body_path, handle_of, load, place_of, save
from tidegate.spi import Message, StoreContext, StoreIOError
from tidegate.testing.memory_store import MemoryStore


class Handle(msgspec.Struct, frozen=True):
    id: str
    size: int
    checksum: int


class LargeMessage(Message, frozen=True, gc=False, array_like=True):
    large: Handle | None = None


class Place:
    """Bodies in memory; remembers how large the pieces were and who was abandoned."""

    def __init__(self, size_min: int = 1) -> None:
        self.size_min = size_min
        self.bodies: dict[str, bytes] = {}
        self.pieces: list[int] = []
        self.abandoned = 0
        self.open_readers = 0

    def put(self, data: bytes) -> Handle:
        handle = Handle(f"id-{len(self.bodies)}", len(data), zlib.crc32(data))
        self.bodies[handle.id] = data
        return handle

    def open(self, body: Handle) -> Any:
        place, at = self, 0
        place.open_readers += 1

        class Reader:
            async def read(self, limit: int) -> bytes:
                nonlocal at
                piece = place.bodies[body.id][at : at + limit]
                at += len(piece)
                place.pieces.append(len(piece))
                return piece

            def close(self) -> None:
                place.open_readers -= 1

        return Reader()

    def create(self, size: int) -> Any:
        place, data = self, bytearray()

        class Writer:
            async def write(self, piece: bytes) -> None:
                place.pieces.append(len(piece))
                data.extend(piece)

            async def finish(self) -> Handle:
                assert len(data) == size
                return place.put(bytes(data))

            def abandon(self) -> None:
                place.abandoned += 1

        return Writer()


BODY = bytes(range(256)) * 12_000


async def saved(tmp_path: Path) -> tuple[LargeMessage, Path]:
    place = Place()
    handle = place.put(BODY)
    path = body_path(tmp_path, 7)
    await save(place, handle, path)
    assert path == tmp_path / "large" / "7.body"
    assert path.read_bytes() == BODY
    assert max(place.pieces) <= 1 << 20
    assert place.open_readers == 0
    return LargeMessage("queue://q", b"", large=handle), path


async def test_a_body_streams_into_a_place_of_its_own(tmp_path: Path) -> None:
    message, path = await saved(tmp_path)
    place = Place()
    place.put(b"another")
    loaded = await load(place, message, path)
    assert loaded.body == b""
    assert handle_of(loaded).id == "id-1"
    assert place.bodies["id-1"] == BODY
    assert max(place.pieces) <= 1 << 20


@pytest.mark.parametrize("place", [None, Place(size_min=len(BODY) + 1)])
async def test_where_there_is_no_such_place_it_comes_with_the_message(
    tmp_path: Path, place: Place | None
) -> None:
    message, path = await saved(tmp_path)
    loaded = await load(place, message, path)
    assert loaded.body == BODY
    assert handle_of(loaded) is None


@pytest.mark.parametrize("change", [BODY[:-1], BODY + b"x", b"\1" + BODY[1:]])
async def test_a_body_that_is_not_what_its_row_says_is_damage(
    tmp_path: Path, change: bytes
) -> None:
    message, path = await saved(tmp_path)
    path.write_bytes(change)
    place = Place()
    with pytest.raises(StoreIOError, match=r"7\.body: the export is damaged"):
        await load(place, message, path)
    assert place.abandoned == (len(change) != len(BODY))


async def test_a_body_that_is_missing_is_named(tmp_path: Path) -> None:
    message, path = await saved(tmp_path)
    path.unlink()
    with pytest.raises(StoreIOError, match=r"7\.body: No such file"):
        await load(Place(), message, path)


def test_ordinary_messages_and_stores_have_none() -> None:
    assert handle_of(Message("queue://q", b"x")) is None
    assert place_of(MemoryStore(StoreContext(Path(), "test"))) is None
