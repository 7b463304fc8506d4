"""What a power cut leaves of bytes that were written but not synced: for ``faulty_storage``.

Bytes come in two ways. A *write* is a system call; each has its own fate. A *store* is a copy
into a mapping of the file: there the system knows only that a page is dirty. It may have written
any page at any time, as it was then, and others earlier or never. So every page has one fate,
however many stores touched it.

Only bytes written since the last sync are lost or damaged: a sector that holds synced bytes beside
new ones keeps the synced ones, and rewriting what is already on the platters harms nothing (the
system writes whole pages, so every append also rewrites the bytes beside it). A device that does
not keep that promise loses what it confirmed, and no program can help that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: The unit that a disk writes entirely or not at all, in bytes.
SECTOR_BYTES: Final = 512
#: The unit that the system writes back from a mapping, in bytes.
PAGE_BYTES: Final = 4096
#: What may happen to an unsynced write when the power fails.
FATES: Final = ("lost", "kept", "prefix", "sectors", "garbled", "flipped")
#: What may happen to a page with unsynced stores: ``earlier`` is its state at some moment since the
#: last sync, perhaps in the middle of a copy.
PAGE_FATES: Final = ("lost", "kept", "earlier", "sectors", "garbled", "flipped")


@dataclass(slots=True)
class Write:
    """One unsynced change of a file.

    Attributes: data: the bytes at *offset*, or None: only the file's *length* changed. mapped: it is
        a store into a mapping.
    """

    offset: int
    data: bytes | None
    length: int
    mapped: bool = False

    def outside(self, other: Write) -> Sequence[Write]:
        """What is left of it where *other* changes nothing: bytes, or the length."""
        if self.data is None or other.data is None:
            return () if self.data is other.data else (self,)
        end, other_end = self.offset + len(self.data), other.offset + len(other.data)
        if self.offset >= other_end or other.offset >= end:
            return (self,)
        return [self._part(begin, stop) for begin, stop in
                ((self.offset, other.offset), (other_end, end)) if begin < stop]  # fmt: skip

    def _part(self, begin: int, end: int) -> Write:
        data = (self.data or b"")[begin - self.offset : end - self.offset]
        return Write(begin, data, end, self.mapped)

    def pieces(self, unit_bytes: int) -> Sequence[Write]:
        """The same in pieces that end at multiples of *unit_bytes*."""
        data = self.data or b""
        pieces: list[Write] = []
        start = 0
        while start < len(data):
            offset = self.offset + start
            size = min(len(data) - start, unit_bytes - offset % unit_bytes)
            part = data[start : start + size]
            pieces.append(Write(offset, part, offset + size, self.mapped))
            start += size
        return pieces

    def first(self, size: int) -> Write:
        """Its first *size* bytes."""
        return Write(self.offset, (self.data or b"")[:size], self.offset + size, self.mapped)


def survivors(unsynced: Sequence[Write], choose: random.Random) -> Iterator[Write]:
    """What reaches the platters when the power fails, in the order to apply it."""
    pages = _page_fates(unsynced, choose)
    for write in unsynced:
        if not write.mapped:
            yield from _fate(write, choose)
        else:
            for piece in write.pieces(PAGE_BYTES):
                yield from pages[piece.offset // PAGE_BYTES].of(piece)


def _fate(write: Write, choose: random.Random) -> Sequence[Write]:
    fate = choose.choice(FATES)
    if fate == "lost":
        return ()
    if fate == "kept" or write.data is None:
        return (write,)
    if fate == "flipped" and write.data:
        return (_flipped(write, choose),)
    sectors = list(write.pieces(SECTOR_BYTES))
    if fate == "prefix":
        return sectors[: choose.randint(0, len(sectors))]
    if fate == "sectors":
        return [sector for sector in sectors if choose.random() < 0.5]
    victim = choose.randrange(len(sectors)) if sectors else 0
    return [
        _garbled(sector, choose) if index == victim else sector
        for index, sector in enumerate(sectors)
    ]


def _flipped(write: Write, choose: random.Random) -> Write:
    data = bytearray(write.data or b"")
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    return Write(write.offset, bytes(data), write.length, write.mapped)


def _garbled(write: Write, choose: random.Random) -> Write:
    data = choose.randbytes(len(write.data or b""))
    return Write(write.offset, data, write.length, write.mapped)


class _Page:
    """The fate of one page; :meth:`of` is called for its stores in order."""

    def __init__(self, stores: Sequence[Write], choose: random.Random) -> None:
        self._choose = choose
        self._fate = choose.choice(PAGE_FATES)
        self._next = 0
        #: For "earlier": whole stores before the moment, and bytes of the next one. For "flipped": which.
        self._store = choose.randrange(len(stores))
        self._bytes = choose.randrange(len(stores[self._store].data or b"") + 1)
        sectors = sorted(
            {
                piece.offset // SECTOR_BYTES
                for store in stores
                for piece in store.pieces(SECTOR_BYTES)
            }
        )
        self._victim = choose.choice(sectors)
        self._kept = {sector for sector in sectors if choose.random() < 0.5}

    def of(self, store: Write) -> Sequence[Write]:
        """What is left of the next store to this page."""
        number = self._next
        self._next += 1
        match self._fate:
            case "lost":
                return ()
            case "earlier" if number >= self._store:
                return (store.first(self._bytes),) if number == self._store else ()
            case "sectors":
                sectors = store.pieces(SECTOR_BYTES)
                return [item for item in sectors if item.offset // SECTOR_BYTES in self._kept]
            case "garbled":
                return [
                    _garbled(item, self._choose)
                    if item.offset // SECTOR_BYTES == self._victim
                    else item
                    for item in store.pieces(SECTOR_BYTES)
                ]
            case "flipped" if number == self._store:
                return (_flipped(store, self._choose),)
            case _:
                return (store,)


def _page_fates(unsynced: Sequence[Write], choose: random.Random) -> dict[int, _Page]:
    stores: dict[int, list[Write]] = {}
    for write in unsynced:
        if write.mapped:
            for piece in write.pieces(PAGE_BYTES):
                stores.setdefault(piece.offset // PAGE_BYTES, []).append(piece)
    return {page: _Page(pieces, choose) for page, pieces in stores.items()}


class Image:
    """Bytes and length of a file; bytes never written take no memory."""

    __slots__ = ("data", "length")

    def __init__(self) -> None:
        self.data = bytearray()
        self.length = 0

    def apply(self, write: Write) -> None:
        """Apply a change."""
        self.length = max(self.length, write.length)
        if write.data is not None:
            if write.offset > len(self.data):
                self.data.extend(bytes(write.offset - len(self.data)))
            self.data[write.offset : write.offset + len(write.data)] = write.data

    def read(self, length: int, offset: int) -> bytes:
        """Up to *length* bytes; fewer only at the end."""
        wanted = max(0, min(length, self.length - offset))
        data = bytes(self.data[offset : offset + wanted])
        return data + bytes(wanted - len(data))

    def copy(self) -> Image:
        """A copy of the current state."""
        image = Image()
        image.data = self.data.copy()
        image.length = self.length
        return image


class Inode:
    """A file on the disk: as it is seen, as it is durable, and the changes in between."""

    __slots__ = ("durable", "lost", "number", "seen", "unsynced")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.seen = Image()
        self.durable = Image()
        self.unsynced: list[Write] = []
        self.lost: list[Write] = []  # a sync of these failed: no later one makes them durable

    def write(self, write: Write) -> None:
        """Visible at once, durable with the next sync."""
        self.seen.apply(write)
        self.unsynced.append(write)

    def sync(self, count: int, *, stores: bool = True) -> None:
        """Make the oldest *count* writes durable; without *stores*, mapped ones are as after a failed sync."""
        for write in self.unsynced[:count]:
            if write.mapped and not stores:
                self.lost.append(write)
                continue
            self.durable.apply(write)
            # Newer bytes took its place: there, and only there, nothing is lost any more.
            self.lost = [part for old in self.lost for part in old.outside(write)]
        del self.unsynced[:count]

    def fail_sync(self) -> None:
        """Unsynced changes will never be durable."""
        self.lost += self.unsynced
        self.unsynced.clear()

    def drop_clean(self, choose: random.Random) -> None:
        """Clean pages leave memory: what a failed sync lost is read as it is on the disk."""
        for write in survivors(self.lost, choose):
            self.durable.apply(write)
        self.lost.clear()
        self.seen = self.durable.copy()
        for write in self.unsynced:
            self.seen.apply(write)

    def cut_power(self, choose: random.Random) -> None:
        """Decide what is left of the unsynced changes."""
        changing = [write for write in self.lost + self.unsynced if not self._has(write)]
        for write in survivors(changing, choose):
            self.durable.apply(write)
        self.unsynced.clear()
        self.lost.clear()
        self.seen = self.durable.copy()

    def _has(self, write: Write) -> bool:
        """The platters already have exactly these bytes."""
        data = write.data
        return data is not None and self.durable.read(len(data), write.offset) == data

    def copy(self) -> Inode:
        """A copy of the current state."""
        inode = type(self)(self.number)
        inode.seen = self.seen.copy()
        inode.durable = self.durable.copy()
        inode.unsynced = self.unsynced.copy()
        inode.lost = self.lost.copy()
        return inode
