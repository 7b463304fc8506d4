"""One data file: what is known of it, and how it comes into being. docs/journal-format.md section 2."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import DATA_OFFSET, END_MARK
from tidegate_store_journal.log.storage import File, Storage

logger = logging.getLogger("tidegate.store.journal")

#: Padding is written and synced in pieces, so that a batch's sync never queues behind a whole file.
_PAD_BYTES: Final = 1 << 20


class DataFile:
    """One data file.

    Attributes:
        file_id, name, length, seed: from its header.
        first_batch: number of its first batch; 0 for a spare.
        reused: it had an earlier life, see ``FileHeader``.
        handle: open, or None.
        readers: page reads under way; a handle with readers is not closed.
    """

    __slots__ = ("file_id", "first_batch", "handle", "length", "name", "readers", "reused", "seed")

    def __init__(
        self,
        file_id: int,
        length: int,
        seed: int,
        handle: File | None,
        *,
        reused: bool = False,
        series: str = _format.JOURNAL,
    ) -> None:
        self.file_id = file_id
        self.name = _format.file_name(file_id, series)
        self.length = length
        self.seed = seed
        self.first_batch = 0
        self.handle = handle
        self.reused = reused
        self.readers = 0


def prepare(
    storage: Storage, store_id: str, file_id: int, length: int, *, pad: bool = True
) -> DataFile:
    """Make a data file that is ready for its first batch. Blocks; any thread. Raises: OSError.

    Crash story: until the rename at the end is durable there is at most a ``.tmp`` file, which the
    next start removes; afterwards there is a file with a valid header and nothing but zeros.
    """
    file = storage.open(_temporary(file_id), create=True)
    try:
        if pad:
            _fill(file, length)
        else:
            file.preallocate(length)
        return _finish(storage, store_id, file_id, length, file)
    except OSError:
        _abandon(storage, _temporary(file_id), file)
        raise


def reuse(
    storage: Storage,
    store_id: str,
    file_id: int,
    length: int,
    free: str,
    series: str = _format.JOURNAL,
) -> DataFile:
    """Make a data file of the dead one called *free*, which has the same length, without padding.

    Its new header gives it a new seed, so no batch of its earlier life is valid any more; and the
    end mark where its first batch will be says that there is none yet. Blocks; any thread.
    Raises: OSError; the dead file may be gone then.

    Crash story: as :func:`prepare`. Until the last rename is durable the file is called *free* or
    ``.tmp``, and nobody looks at the bytes of such files.
    """
    temporary = _temporary(file_id, series)
    storage.rename(free, temporary)
    file: File | None = None
    try:
        file = storage.open(temporary)
        file.pwritev([END_MARK], DATA_OFFSET)
        return _finish(storage, store_id, file_id, length, file, reused=True, series=series)
    except OSError:
        _abandon(storage, temporary, file)
        raise


def make_padded(storage: Storage, name: str, length: int) -> None:
    """Make the file *name* of *length* zeros that have their room on the device. Blocks.

    Raises: OSError; then it is not there.
    """
    temporary = name + ".tmp"
    file = storage.open(temporary, create=True)
    try:
        _fill(file, length)
        file.datasync()
    except OSError:
        _abandon(storage, temporary, file)
        raise
    file.close()
    storage.rename(temporary, name)
    storage.sync_directory()


def _fill(file: File, length: int) -> None:
    zeros = bytes(_PAD_BYTES)
    file.preallocate(length)
    for offset in range(0, length, _PAD_BYTES):
        file.pwritev([zeros[: min(_PAD_BYTES, length - offset)]], offset)
        if offset % (4 * _PAD_BYTES) == 0:
            file.datasync()


def _temporary(file_id: int, series: str = _format.JOURNAL) -> str:
    return _format.file_name(file_id, series) + ".tmp"


def _finish(
    storage: Storage,
    store_id: str,
    file_id: int,
    length: int,
    file: File,
    *,
    reused: bool = False,
    series: str = _format.JOURNAL,
) -> DataFile:
    """Header, sync, name, sync: in this order."""
    header = _format.encode_file_header(
        store_id, file_id, secrets.randbits(64), length, reused=reused, series=series
    )
    file.pwritev([header.ljust(DATA_OFFSET, b"\0")], 0)
    file.datasync()
    storage.rename(_temporary(file_id, series), _format.file_name(file_id, series))
    storage.sync_directory()
    seed = _format.decode_file_header(header).seed
    return DataFile(file_id, length, seed, file, reused=reused, series=series)


def _abandon(storage: Storage, name: str, file: File | None) -> None:
    """It could not be made: leave nothing that takes room."""
    if file is not None:
        file.close()
    try:
        storage.unlink(name)
    except OSError:
        logger.info("could not remove an unfinished data file name=%s", name)
