"""``index-store-state``: whether the metadata store may be trusted.

Removing the file asks for a rebuild (the AMQ store's document, "Failure recovery"). After a clean
stop it holds length and CRC of LMDB's file (the *seal*), because LMDB itself notices only damage
that breaks its tree.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from tidegate_store_journal.checkpoint.metadata import MetadataError
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.log.storage import Storage, write_atomically

MARKER_NAME: Final = "index-store-state"
_TEXT: Final = """\
Remove this file while no gateway runs, and the next start does not trust the metadata store: it
rebuilds everything from the data files.
"""
_DATA_NAME: Final = "data.mdb"
_READ_BYTES: Final = 4 << 20


def take_marker(storage: Storage, metadata_directory: Path) -> bool:
    """Check the metadata store against the marker, and break the seal before it is written to.

    Returns: False when the marker was removed but there is a metadata store.
    Blocks. Raises: MetadataError when it has changed since the clean stop; OSError.
    """
    path = metadata_directory / _DATA_NAME
    try:
        with closing(storage.open(MARKER_NAME)) as file:
            text = file.pread(file.length, 0).decode("utf-8", "replace")
    except FileNotFoundError:
        write_atomically(storage, MARKER_NAME, _TEXT.encode())
        return not path.exists()
    if text == _TEXT:
        return True
    write_atomically(storage, MARKER_NAME, _TEXT.encode())
    if path.exists() and text != _TEXT + _seal_of(path):
        raise MetadataError(f"{path} is not what it was when the gateway stopped")
    return True


def seal_marker(storage: Storage, metadata_directory: Path) -> None:
    """Seal it after a clean stop, once LMDB has closed its file. Blocks. Raises: OSError."""
    path = metadata_directory / _DATA_NAME
    if path.exists():
        write_atomically(storage, MARKER_NAME, (_TEXT + _seal_of(path)).encode())


def _seal_of(path: Path) -> str:
    length = crc = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            length += len(data)
            crc = crc32c(crc, data)
    return f"sealed length={length} crc32c={crc:08x}\n"
