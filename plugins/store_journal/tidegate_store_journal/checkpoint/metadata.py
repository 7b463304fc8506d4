"""The metadata store: the checkpoint, in LMDB. docs/journal-format.md section 7.

It can always be deleted; everything in it can be rebuilt from the journal. :class:`Metadata` itself
keeps nothing: it is for journals without a real directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import lmdb
import msgspec
from lmdb import verify as lmdb_verify

from tidegate.spi import Progress
from tidegate.spi.private_files import FILE_MODE, make_private_directory
from tidegate_store_journal.index.acklog import AckBlock, AckPage
from tidegate_store_journal.index.changes import (
    ACKNOWLEDGED,
    META,
    PENDING,
    TABLES,
    TABLES_OF_LISTS,
    Changes,
    Numbers,
    Rows,
    Table,
    crc_in,
)
from tidegate_store_journal.log.format import FormatError
from tidegate_store_journal.log.names import NamedStorage

T = TypeVar("T")

METADATA_VERSION: Final = 1
#: Up to this size the whole file is verified before LMDB maps it (0.03 s a MiB): LMDB trusts its
#: pages, and a damaged one can end the process instead of raising an error.
_VERIFY_BYTES_MAX: Final = 8 << 20
#: Above this size the file is unmapped after use: each page touched counts as resident memory of
#: the gateway, and the kernel maps 15 more around it. Reopening takes a millisecond.
_UNMAP_BYTES: Final = 16 << 20
#: Address space, not disk: LMDB maps this much, doubled when it is not enough.
_MAP_BYTES: Final = 4 << 30
_MAP_BYTES_MAX: Final = 1 << 44

_STATE_KEY: Final = b"state"


class MetadataError(Exception):
    """The metadata store is missing something or damaged; the journal can rebuild it."""


@dataclass(slots=True)
class MetadataCounters:
    """Everything ever written, also in earlier runs: the proof that short-lived messages never get here.

    Attributes: checkpoints; pending_put, pending_deleted: message references, counted when they first
    came in and when they went; pieces_put, pieces_deleted: values with them, also those that only changed;
    acknowledged_put, acknowledged_deleted: blocks of the acknowledged log.
    """

    checkpoints: int = 0
    pending_put: int = 0
    pending_deleted: int = 0
    pieces_put: int = 0
    pieces_deleted: int = 0
    acknowledged_put: int = 0
    acknowledged_deleted: int = 0

    def add(self, other: MetadataCounters) -> None:
        """Count what *other* counts, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class MetadataState(Numbers, frozen=True, array_like=True):
    """Value of ``meta/state``: the numbers of the checkpoint, then everything else about it.

    Attributes: file_id, offset: where replay begins. bindings: the last batch of the bindings journal
    then. clean: the store was closed. counters: over all runs. digest: the exclusive or of the CRCs of
    all values of the other tables.
    """

    version: int = METADATA_VERSION
    store_id: str = ""
    clean: bool = False
    file_id: int = 0
    offset: int = 0
    bindings: int = 0
    counters: MetadataCounters = msgspec.field(default_factory=MetadataCounters)
    digest: int = 0


@dataclass(slots=True)
class Loaded:
    """A whole checkpoint, read back. Attributes: rows: by table, in the order of their keys."""

    state: MetadataState
    rows: Rows


class Metadata:
    """Stores checkpoints. Blocking; never two calls at once. This base class keeps nothing.

    Attributes: is_kept: whether a start finds what was saved.
    """

    is_kept = False

    def __init__(self, unused: Metadata | None = None) -> None:
        """*unused*: an old metadata store that may exist, and is removed.

        Left in place, it would later be trusted, with an outdated view of the journal.
        """
        self.counters = MetadataCounters()
        self._unused = unused

    def load(self, progress: Progress) -> Loaded | None:
        """The last checkpoint; None when there is none. Raises: MetadataError, OSError."""
        if self._unused is not None:
            self._unused.reset()
        return None

    def save(self, changes: Changes, state: MetadataState) -> None:
        """Write *changes* and *state* in one durable transaction. After :meth:`load` or :meth:`reset`.

        Raises: OSError; nothing changed then.
        """
        self.counters.checkpoints += 1

    def acknowledged(self, page: AckPage) -> list[AckBlock]:
        """The blocks of *page*. From any thread, even during other calls.

        Raises: MetadataError, OSError.
        """
        raise NotImplementedError  # nothing is kept here, so nothing is paged out

    def reset(self) -> None:
        """Start over with an empty one."""

    @property
    def disk_bytes(self) -> int:
        """Bytes on disk."""
        return 0

    def close(self) -> None:
        """Release what is open. Idempotent."""


class LmdbMetadata(Metadata):
    """See the module."""

    is_kept = True

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        """*read_only*: look on while a gateway (another process) writes; only load and close."""
        super().__init__()
        self._read_only = read_only
        self._directory = directory
        self._map_bytes = _MAP_BYTES
        self._environment: lmdb.Environment | None = None
        self._open: dict[str, lmdb._Database] = {}
        #: Of what is being written, and of the checkpoint on disk. Kept in memory: damage to the bytes
        #: there must not affect the next one, and is found by the next start.
        self._digest = self._saved_digest = 0
        self._lock = threading.Lock()  # LMDB must not be unmapped or grow while it is read

    def _env(self) -> lmdb.Environment:
        if self._environment is None:
            if not self._read_only:
                make_private_directory(self._directory)
            environment = lmdb.open(
                str(self._directory),
                map_size=self._map_bytes,
                max_dbs=1 + len(TABLES),
                # The journal's own lock keeps others out; this one lets read-only tools look on.
                lock=True,
                readonly=self._read_only,
                mode=FILE_MODE,
                metasync=True,
                sync=True,
            )
            self._open = {
                name: environment.open_db(name.encode(), create=not self._read_only)
                for name in [table.name for table in (META, *TABLES)]
            }
            # LMDB trusts its description of a table: with a wrong bit there it sorts in another order,
            # or ends the process at a write.
            if any(any(database.flags().values()) for database in self._open.values()):
                environment.close()
                raise lmdb.CorruptedError("a table is of a kind that was never made")
            self._environment = environment
            self._map_bytes = environment.info()["map_size"]
        return self._environment

    def load(self, progress: Progress) -> Loaded | None:
        return self._read(lambda transaction: self._load(transaction, progress))

    def load_counters(self) -> None:
        """Only :attr:`counters`, without reading the checkpoint.

        Raises: MetadataError, OSError.
        """
        self._read(self._load_state)

    def _read(self, take: Callable[[lmdb.Transaction], T | None]) -> T | None:
        """What *take* finds; None when there is no metadata store."""
        if not (self._directory / "data.mdb").exists():
            return None
        if not self._read_only:
            self._verify()  # a file being written cannot be verified
        try:
            with self._env().begin() as transaction:
                found = take(transaction)
            self._unmap_if_large()
            return found
        except (lmdb.Error, msgspec.DecodeError, struct.error, FormatError, ValueError) as error:
            raise MetadataError(f"{self._directory}: {error}") from error

    def _verify(self) -> None:
        path = self._directory / "data.mdb"
        is_plausible = _is_plausible(path)
        if not is_plausible or path.stat().st_size <= _VERIFY_BYTES_MAX:
            verify_pages(path)

    def _load_state(self, transaction: lmdb.Transaction) -> MetadataState | None:
        """Also takes over the counters."""
        value = transaction.get(_STATE_KEY, db=self._open[META.name])
        if value is None:
            return None
        data = META.decode(_STATE_KEY, bytes(value))
        state = msgspec.msgpack.decode(data, type=MetadataState)
        if state.version != METADATA_VERSION:
            raise MetadataError(f"{self._directory} has version {state.version}")
        self.counters = state.counters
        return state

    def _load(self, transaction: lmdb.Transaction, progress: Progress) -> Loaded | None:
        state = self._load_state(transaction)
        if state is None:
            return None
        digest = 0
        rows: Rows = {table: {} for table in TABLES}
        for table, found in rows.items():
            database = self._open[table.name]
            total = transaction.stat(database)["entries"]
            for done, (key_seen, value_seen) in enumerate(transaction.cursor(db=database)):
                key, value = bytes(key_seen), bytes(value_seen)  # they are: for the types
                found[table.key.unpack(key)] = table.decode(key, value)
                digest ^= crc_in(value)
                if done % 1000 == 0:
                    progress("loading the checkpoint", done, total)
        # A wrong bit in a tree can hide a whole branch of it, and a page that was not written can
        # hold values that were once right.
        if state.digest != digest:
            raise MetadataError(
                f"{self._directory} is not of one checkpoint, or not all of it is there"
            )
        self._saved_digest = digest
        for (_, key), piece in rows[PENDING].items():
            piece.key = key
        return Loaded(state, rows)

    def acknowledged(self, page: AckPage) -> list[AckBlock]:
        blocks: list[AckBlock] = []
        try:
            with self._lock:
                with self._env().begin() as transaction:
                    cursor = transaction.cursor(db=self._open[ACKNOWLEDGED.name])
                    cursor.set_range(ACKNOWLEDGED.key.pack(page.first))
                    for key_seen, value in cursor:
                        key = bytes(key_seen)
                        if ACKNOWLEDGED.key.unpack(key)[0] > page.last:
                            break
                        blocks.append(ACKNOWLEDGED.decode(key, bytes(value)))
                self._unmap_if_large()
        except (lmdb.Error, FormatError) as error:
            raise MetadataError(f"{self._directory}: {error}") from error
        if sum(block.count for block in blocks) != page.last + 1 - page.first:
            raise MetadataError(f"{self._directory} misses rows from {page.first} to {page.last}")
        return blocks

    def save(self, changes: Changes, state: MetadataState) -> None:
        with self._lock:
            self._save(changes, state)

    def _save(self, changes: Changes, state: MetadataState) -> None:
        while True:
            counters = MetadataCounters(checkpoints=1)
            try:
                with self._env().begin(write=True) as transaction:
                    self._digest = self._saved_digest
                    self._save_tables(transaction, changes, counters)
                    total = replace(self.counters)
                    total.add(counters)
                    whole = msgspec.structs.replace(state, counters=total, digest=self._digest)
                    value = META.encode(_STATE_KEY, whole)
                    transaction.put(_STATE_KEY, value, db=self._open[META.name])
                break
            except lmdb.MapFullError as error:
                if self._map_bytes >= _MAP_BYTES_MAX:
                    raise OSError(errno.ENOSPC, "the metadata store is full") from error
                self._map_bytes *= 2
                self._env().set_mapsize(self._map_bytes)
            except lmdb.Error as error:
                self.close()  # after a failed write it may refuse everything until reopened
                is_full = isinstance(error, lmdb.DiskError) or str(error).endswith(_FULL_TEXTS)
                number = errno.ENOSPC if is_full else errno.EIO
                raise OSError(number, f"metadata store: {error}") from error
        self._unmap_if_large()
        self._saved_digest = self._digest
        self.counters.add(counters)

    def _save_tables(
        self, transaction: lmdb.Transaction, change: Changes, counters: MetadataCounters
    ) -> None:
        put, gone = dict.fromkeys(TABLES, 0), dict.fromkeys(TABLES, 0)
        for table, rows in change.rows.items():
            for parts, value in rows.items():
                key = table.key.pack(*parts)
                if value is None:
                    gone[table] += self._delete(transaction, table, key)
                else:
                    self._put(transaction, table, key, value)
                    put[table] += 1
        for list_id in change.dropped_lists:
            self._drop_list(transaction, list_id)
        counters.pending_put, counters.pending_deleted = change.added, change.removed
        counters.pieces_put, counters.pieces_deleted = put[PENDING], gone[PENDING]
        counters.acknowledged_put = put[ACKNOWLEDGED]
        counters.acknowledged_deleted = gone[ACKNOWLEDGED]

    def _put(self, transaction: lmdb.Transaction, table: Table, key: bytes, value: Any) -> None:
        data = table.encode(key, value)
        before = transaction.replace(key, data, db=self._open[table.name])
        self._digest ^= crc_in(data) ^ crc_in(before or b"")

    def _delete(self, transaction: lmdb.Transaction, table: Table, key: bytes) -> bool:
        before = transaction.pop(key, db=self._open[table.name])
        self._digest ^= crc_in(before or b"")
        return before is not None

    def _drop_list(self, transaction: lmdb.Transaction, list_id: int) -> None:
        for table in TABLES_OF_LISTS:
            cursor = transaction.cursor(db=self._open[table.name])
            prefix = ACKNOWLEDGED.key.pack(list_id)
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()).startswith(prefix):
                self._digest ^= crc_in(cursor.value())
                found = cursor.delete()

    def _unmap_if_large(self) -> None:
        if self.disk_bytes > _UNMAP_BYTES:
            self.close()

    def reset(self) -> None:
        self.close()
        self._saved_digest = 0
        if self._directory.exists():
            shutil.rmtree(self._directory)

    @property
    def disk_bytes(self) -> int:
        """Bytes of LMDB's file."""
        try:
            return (self._directory / "data.mdb").stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def read_counters(directory: Path) -> MetadataCounters:
    """Counters of everything ever written to the metadata store of the journal in *directory*.

    Works beside a running gateway; zeros where there is no metadata store.
    Raises: MetadataError.
    """
    where = NamedStorage(directory).metadata_directory
    with closing(LmdbMetadata(where, read_only=True)) as metadata:
        metadata.load_counters()
        return metadata.counters


def verify_pages(path: Path) -> None:
    """Verify every page of LMDB's file. Raises: MetadataError."""
    try:
        problems = cast(
            "list[str]",
            lmdb_verify.verify(str(path)),  # pyright: ignore[reportUnknownMemberType]  # untyped
        )
    except lmdb_verify.VerifyError as error:
        raise MetadataError(f"{path}: {error}") from error
    if problems:
        raise MetadataError(f"{path}: {problems[0]}")


#: LMDB has its own error for a full disk, but not for a used-up quota; and when only part of a write fits, it says
#: EIO, as on a broken disk, where retrying with more room does no harm.
_FULL_TEXTS: Final = (os.strerror(errno.EDQUOT), os.strerror(errno.EIO))

#: LMDB's meta page (mdb.c, MDB_page and MDB_meta, 64 bit): page size; flags of its tree of free pages and of
#: its main tree; last page; transaction id.
_META_PAGE: Final = struct.Struct("<40xIH46xH42xQQ")
#: MDB_INTEGERKEY for the free pages. With a wrong one LMDB ends the process when it takes a page.
_META_FLAGS: Final = (8, 0)


def _is_plausible(path: Path) -> bool:
    """Whether the file reaches its last page: otherwise reading there through the map would be SIGBUS.

    A file may end early legally (free pages at the end were never written), so False only calls
    for a closer look. Raises: MetadataError, OSError.
    """
    with path.open("rb") as file:
        first = file.read(_META_PAGE.size)
        if len(first) < _META_PAGE.size:
            return False
        page_bytes = _META_PAGE.unpack(first)[0]
        file.seek(page_bytes)
        second = file.read(_META_PAGE.size)
        if len(second) < _META_PAGE.size:
            return False
    metas = (_META_PAGE.unpack(first), _META_PAGE.unpack(second))
    _, *flags, last_page, _ = max(metas, key=lambda meta: meta[-1])
    if tuple(flags) != _META_FLAGS:
        raise MetadataError(f"{path}: wrong flags in the meta page")
    return path.stat().st_size >= (last_page + 1) * page_bytes
