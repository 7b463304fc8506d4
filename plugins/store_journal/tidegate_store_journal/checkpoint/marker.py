"""``index-store-state``: whether the metadata store may be trusted.

Whoever removes the file asks for a rebuild (the AMQ store's document, "Failure recovery"). It says
two more things, because LMDB itself notices only damage that breaks its tree:

* after a clean stop, the length and CRC of LMDB's file (the *seal*);
* which checkpoint was on disk when data files were put away last (the *floor*). A checkpoint older
  than that names files that are gone. A copy that somebody put back is one, and so is what LMDB
  falls back to when the newer of its two meta pages is damaged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tidegate_store_journal.checkpoint.metadata import MetadataError, MetadataState
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.log.storage import Storage, write_atomically

MARKER_NAME: Final = "index-store-state"
_TEXT: Final = """\
Remove this file while no gateway runs, and the next start does not trust the metadata store: it
rebuilds everything from the data files.
"""
_FLOOR: Final = re.compile(
    r"^put away after batch=(\d+) released=(\d+) crc32c=[0-9a-f]{8}$", re.MULTILINE
)
_SEAL: Final = re.compile(r"^sealed length=(\d+) crc32c=([0-9a-f]{8})$", re.MULTILINE)
_DATA_NAME: Final = "data.mdb"
_READ_BYTES: Final = 4 << 20


class Floor(NamedTuple):
    """A checkpoint: its batch, and the acknowledged rows that were released by then."""

    batch: int = 0
    released: int = 0

    def is_above(self, state: MetadataState) -> bool:
        """That checkpoint is older than this one."""
        return state.batch < self.batch or state.ack_released < self.released


class _Marker(NamedTuple):
    floor: Floor = Floor()
    seal: tuple[int, int] | None = None  # length and CRC

    def text(self) -> str:
        text = _TEXT
        if self.floor != Floor():
            line = f"put away after batch={self.floor.batch} released={self.floor.released}"
            text += f"{line} crc32c={crc32c(0, line.encode()):08x}\n"
        if self.seal is not None:
            text += f"sealed length={self.seal[0]} crc32c={self.seal[1]:08x}\n"
        return text


def _parsed(text: str) -> _Marker | None:
    """None when any character is not as it was written."""
    floor, seal = _FLOOR.search(text), _SEAL.search(text)
    marker = _Marker(
        Floor(int(floor[1]), int(floor[2])) if floor else Floor(),
        (int(seal[1]), int(seal[2], 16)) if seal else None,
    )
    return marker if marker.text() == text else None


def _read(storage: Storage) -> _Marker | None:
    """None when the marker is damaged. Raises: FileNotFoundError, OSError."""
    file = storage.open(MARKER_NAME)
    try:
        return _parsed(file.pread(file.length, 0).decode("utf-8", "replace"))
    finally:
        file.close()


def _write(storage: Storage, marker: _Marker) -> None:
    write_atomically(storage, MARKER_NAME, marker.text().encode())


def take_marker(storage: Storage, metadata_directory: Path) -> Floor | None:
    """Check the metadata store against the marker, and break the seal: it will be written to.

    Returns: what no checkpoint may be older than; None when the marker was removed although there is
    a metadata store.
    Blocks. Raises: MetadataError when it is not what it was at the clean stop; OSError.
    """
    path = metadata_directory / _DATA_NAME
    try:
        marker = _read(storage)
    except FileNotFoundError:
        _write(storage, _Marker())
        return None if path.exists() else Floor()
    if marker is not None and marker.seal is None:
        return marker.floor
    is_intact = marker is not None and path.exists() and _length_and_crc(path) == marker.seal
    floor = Floor() if marker is None else marker.floor
    _write(storage, _Marker(floor))
    if not is_intact and path.exists():
        raise MetadataError(f"{path} is not what it was when the gateway stopped")
    return floor


def raise_floor(storage: Storage, floor: Floor) -> None:
    """The checkpoint *floor* is on disk, and data files that older ones name are about to go.

    Crash story: before this is durable, all files are there that any checkpoint names. Blocks.
    Raises: OSError.
    """
    _write(storage, _Marker(floor))


def forget_floor(storage: Storage) -> None:
    """There is no checkpoint any more; the next one stands for a journal that was rebuilt.

    Blocks. Raises: OSError.
    """
    try:
        marker = _read(storage)
    except FileNotFoundError:
        return
    if marker != _Marker():
        _write(storage, _Marker())


def seal_marker(storage: Storage, metadata_directory: Path) -> None:
    """After a clean stop, when LMDB has closed its file. Blocks. Raises: OSError."""
    path = metadata_directory / _DATA_NAME
    if path.exists():
        try:
            marker = _read(storage) or _Marker()
        except FileNotFoundError:
            marker = _Marker()
        _write(storage, marker._replace(seal=_length_and_crc(path)))


def _length_and_crc(path: Path) -> tuple[int, int]:
    length = crc = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            length += len(data)
            crc = crc32c(crc, data)
    return length, crc
