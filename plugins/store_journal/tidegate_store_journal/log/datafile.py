"""One data file: its state, and how it is made. docs/journal-format.md section 2."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.format import BATCH_HEADER_BYTES, DATA_OFFSET, END_MARK
from tidegate_store_journal.log.storage import File, Folder

logger = logging.getLogger("tidegate.store.journal")

#: Padding is written and synced in pieces, so that a batch's sync never queues behind a whole file.
_PAD_BYTES: Final = 1 << 20


@dataclass(slots=True, eq=False)
class DataFile:
    """One data file.

    Attributes:
        file_id, name, length, seed, store_id: from its header.
        handle: open, or None.
        home: the directory it is in.
        folder: that directory's name; "" for the journal's own.
        reused: it had an earlier life, see ``FileHeader``.
        first_batch: number of its first batch; 0 for a spare. first_synced: what that calls synced.
        readers: page reads in progress; a handle with readers is not closed.
        mended_page: its repaired first page when one copy of the header is damaged, or b"".
    """

    file_id: int
    length: int
    seed: int
    handle: File | None = None
    _: KW_ONLY
    home: Folder
    folder: str = ""
    reused: bool = False
    series: InitVar[str] = _format.JOURNAL
    store_id: str = ""
    name: str = field(init=False)
    first_batch: int = field(default=0, init=False)
    first_synced: int = field(default=0, init=False)
    readers: int = field(default=0, init=False)
    mended_page: bytes = field(default=b"", init=False)

    def __post_init__(self, series: str) -> None:
        self.name = _format.file_name(self.file_id, series)

    def close(self) -> None:
        """Close the handle. Idempotent."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None


@dataclass(slots=True)
class Tail:
    """Where the next batch of the journal goes; everything in the index is before it."""

    file: DataFile | None
    offset: int


@contextmanager
def using(file: DataFile) -> Generator[File]:
    """The file's handle, or a temporary one: there can be more files than descriptors.

    Raises: OSError.
    """
    handle = file.handle or file.home.open(file.name)
    try:
        yield handle
    finally:
        if handle is not file.handle:
            handle.close()


def read_data_file(storage: Folder, name: str) -> DataFile:
    """The data file *name* with its number of the first batch, not open.

    Raises: FormatError: its header; OSError.
    """
    with closing(storage.open(name)) as handle:
        header, mended_page = _format.decode_header_page(handle.pread(DATA_OFFSET, 0))
        head = handle.pread(BATCH_HEADER_BYTES, DATA_OFFSET)
    file = DataFile(
        header.file_id,
        header.length,
        header.seed,
        home=storage,
        reused=header.reused,
        series=header.series,
        store_id=header.store_id,
    )
    file.mended_page = mended_page
    first = _format.decode_batch_header(file.seed, head)
    if first is not None:
        file.first_batch, file.first_synced = first.batch, first.synced
    return file


def new_file(
    home: Folder,
    store_id: str,
    file_id: int,
    length: int,
    *,
    reused: bool = False,
    series: str = _format.JOURNAL,
    folder: str = "",
) -> tuple[DataFile, bytes]:
    """A data file to be made, and the bytes before its first batch."""
    header = _format.encode_file_header(
        store_id, file_id, secrets.randbits(64), length, reused=reused, series=series
    )
    seed = _format.decode_file_header(header).seed
    file = DataFile(file_id, length, seed, home=home, folder=folder, reused=reused, series=series)
    return file, _format.header_page(header)


def make_file(home: Folder, name: str, fill: Callable[[File], None], *, free: str = "") -> File:
    """Make the file *name*, from the one called *free* if given, with what *fill* writes.

    Blocks; any thread. Returns: the open file. Raises: OSError; nothing is left, not even *free*.

    Crash story: until the final rename is durable the file is called *free* or ``.tmp``: its bytes
    are never read, and the next start removes the latter. After that, what *fill* wrote is there.
    """
    temporary = name + ".tmp"
    if free:
        home.rename(free, temporary)
    file: File | None = None
    try:
        file = home.open(temporary, create=not free)
        fill(file)
        file.datasync()
        home.rename(temporary, name)
        home.sync_directory()
    except OSError:
        if file is not None:
            file.close()
        try:
            home.unlink(temporary)
            home.unlink(name)  # it may not be durable
        except OSError:
            logger.info("could not remove an unfinished data file name=%s", temporary)
        raise
    return file


def prepare(
    home: Folder,
    store_id: str,
    file_id: int,
    length: int,
    *,
    pad: bool = True,
    free: str = "",
    series: str = _format.JOURNAL,
) -> DataFile:
    """Make a data file that is ready for its first batch; see :func:`make_file`.

    The dead file *free* has that length already and needs no padding. Its new header has a new
    seed, so no batch of its earlier life is valid any more. The end mark at the place of its first
    batch says that there is none yet.
    """
    data, page = new_file(home, store_id, file_id, length, reused=bool(free), series=series)

    def fill(file: File) -> None:
        if free:
            file.pwritev([END_MARK], DATA_OFFSET)
        elif pad:
            _fill(file, length)
        else:
            file.preallocate(length)
        file.pwritev([page], 0)

    data.handle = make_file(home, data.name, fill, free=free)
    return data


def make_padded(storage: Folder, name: str, length: int) -> None:
    """Make the file *name* with *length* zeros, allocated on the device; see make_file."""
    make_file(storage, name, lambda file: _fill(file, length)).close()


def _fill(file: File, length: int) -> None:
    zeros = bytes(_PAD_BYTES)
    file.preallocate(length)
    for offset in range(0, length, _PAD_BYTES):
        file.pwritev([zeros[: min(_PAD_BYTES, length - offset)]], offset)
        if offset % (4 * _PAD_BYTES) == 0:
            file.datasync()
