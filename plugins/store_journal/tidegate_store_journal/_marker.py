"""``index-store-state``: whether the metadata store may be trusted.

Whoever removes the file asks for a rebuild (the AMQ store's document, "Failure recovery"). After a
clean stop it also holds the length and CRC of LMDB's file, because LMDB itself notices only damage
that breaks its tree: a bit that changes in a value would be believed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tidegate_store_journal._format import crc32c
from tidegate_store_journal._metadata import MetadataError
from tidegate_store_journal._storage import Storage, write_atomically

MARKER_NAME: Final = "index-store-state"
_TEXT: Final = """\
Remove this file while no gateway runs, and the next start does not trust the metadata store: it
rebuilds everything from the data files.
"""
_SEAL: Final = re.compile(r"^sealed length=(\d+) crc32c=([0-9a-f]{8})$", re.MULTILINE)
_DATA_NAME: Final = "data.mdb"
_READ_BYTES: Final = 4 << 20


def take_marker(storage: Storage, metadata_directory: Path) -> bool:
    """Check the metadata store against the marker, and break the seal: it will be written to.

    Returns: False when the marker was removed although there is a metadata store.
    Blocks. Raises: MetadataError when it is not what it was at the clean stop; OSError.
    """
    path = metadata_directory / _DATA_NAME
    try:
        file = storage.open(MARKER_NAME)
    except FileNotFoundError:
        write_atomically(storage, MARKER_NAME, _TEXT.encode())
        return not path.exists()
    try:
        text = file.pread(file.length, 0).decode("utf-8", "replace")
    finally:
        file.close()
    if text == _TEXT:
        return True
    seal = _SEAL.search(text)
    is_intact = (
        seal is not None
        and text == _sealed(int(seal[1]), int(seal[2], 16))
        and path.exists()
        and _length_and_crc(path) == (int(seal[1]), int(seal[2], 16))
    )
    write_atomically(storage, MARKER_NAME, _TEXT.encode())
    if not is_intact and path.exists():
        raise MetadataError(f"{path} is not what it was when the gateway stopped")
    return True


def seal_marker(storage: Storage, metadata_directory: Path) -> None:
    """After a clean stop, when LMDB has closed its file. Blocks. Raises: OSError."""
    path = metadata_directory / _DATA_NAME
    if path.exists():
        write_atomically(storage, MARKER_NAME, _sealed(*_length_and_crc(path)).encode())


def _sealed(length: int, crc: int) -> str:
    return f"{_TEXT}sealed length={length} crc32c={crc:08x}\n"


def _length_and_crc(path: Path) -> tuple[int, int]:
    length = crc = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            length += len(data)
            crc = crc32c(crc, data)
    return length, crc
