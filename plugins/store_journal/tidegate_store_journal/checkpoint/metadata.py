"""The metadata store: the checkpoint, in LMDB. docs/journal-format.md section 7.

It can always be deleted; everything in it can be rebuilt from the journal. The
two classes have the same shape; :class:`NoMetadata` is for journals without a real directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

import lmdb
import msgspec
from lmdb import verify as lmdb_verify

from tidegate.spi import LargeBody
from tidegate_store_journal.index.acklog import AckBlock, AckPage, decode_block
from tidegate_store_journal.index.changes import Changes
from tidegate_store_journal.index.pieces import Piece, decode_piece, encode_piece
from tidegate_store_journal.log.format import FormatError, crc32c, encode
from tidegate_store_journal.log.names import NamedStorage

T = TypeVar("T")

METADATA_VERSION: Final = 1
#: Up to this size the whole file is verified before LMDB maps it (0.03 s a MiB): LMDB trusts its
#: pages, and a damaged one can end the process instead of raising an error.
_VERIFY_BYTES_MAX: Final = 8 << 20
#: Above this size the file is unmapped after use: a page that was touched counts as resident memory of
#: the gateway, and the kernel maps 15 more around it. Opening it again takes a millisecond.
_UNMAP_BYTES: Final = 16 << 20
#: Address space, not disk: LMDB maps this much, and it is doubled when it is not enough.
_MAP_BYTES: Final = 4 << 30
_MAP_BYTES_MAX: Final = 1 << 44

_PENDING_KEY: Final = struct.Struct(">QQ")
_U64_KEY: Final = struct.Struct(">Q")
_COUNT: Final = struct.Struct("<I")
_CRC_BYTES: Final = 4
_TABLES: Final[tuple[str, ...]] = (
    "meta",
    "pending",
    "deliveries",
    "large",
    "acknowledged",
    "files",
)
#: In the CRC of each value, so that one of another table is noticed.
_SEEDS: Final = {name: crc32c(0, name.encode()) for name in _TABLES}
_STATE_KEY: Final = b"state"
_COUNTERS_KEY: Final = b"counters"
_ENTRIES_KEY: Final = b"entries"
#: Per table, number of entries and digest; and the CRCs of ``meta/state`` and ``meta/counters``.
_Entries = tuple[dict[str, tuple[int, int]], tuple[int, int]]
_decode_entries: Final = msgspec.msgpack.Decoder(_Entries).decode


class MetadataError(Exception):
    """The metadata store is missing something or damaged; the journal can rebuild it."""


class MetadataState(msgspec.Struct, frozen=True, array_like=True):
    """Value of ``meta/state``."""

    version: int
    store_id: str
    clean: bool
    batch: int
    file_id: int
    offset: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int
    bindings: int = 0  # batch of the bindings journal that was the last one


@dataclass(slots=True)
class Loaded:
    """A whole checkpoint, read back."""

    state: MetadataState
    lists: dict[int, list[Piece]]
    deliveries: dict[tuple[int, int], int]
    acknowledged: list[AckBlock]
    speaks_of: dict[int, list[int]]
    large: dict[int, LargeBody] = field(default_factory=dict[int, LargeBody])


@dataclass(slots=True)
class MetadataCounters:
    """What was ever written, also in earlier runs: the proof that short-lived messages never get here.

    Attributes: checkpoints; pending_put, pending_deleted: message references, each when it first came
    in and when it went; pieces_put, pieces_deleted: values with them, also those that only changed;
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

    def become(self, other: MetadataCounters) -> None:
        """Take the values of *other*."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))


class Metadata(Protocol):
    """Where checkpoints go. Blocking; never two calls at once."""

    counters: MetadataCounters

    def load(self, progress: Callable[[str, int, int], None]) -> Loaded | None:
        """The last checkpoint; None when there is none. Raises: MetadataError, OSError."""
        ...

    def save(self, changes: Changes, state: MetadataState) -> None:
        """Write *changes* and *state* in one durable transaction.

        Raises: OSError; nothing changed then.
        """
        ...

    def acknowledged(self, page: AckPage) -> list[AckBlock]:
        """The blocks of *page*. From any thread, also while others call.

        Raises: MetadataError, OSError.
        """
        ...

    def reset(self) -> None:
        """Begin again with an empty one."""
        ...

    @property
    def disk_bytes(self) -> int: ...

    def close(self) -> None: ...


class NoMetadata:
    """No metadata store: every start replays all there is."""

    def __init__(self, unused: Metadata | None = None) -> None:
        """*unused*: one that may be there from another time, and is removed.

        Left where it is, it would describe the journal as it once was to whoever believes it later.
        """
        self.counters = MetadataCounters()
        self._unused = unused

    def load(self, progress: Callable[[str, int, int], None]) -> Loaded | None:
        """See :class:`Metadata`."""
        if self._unused is not None:
            self._unused.reset()
        return None

    def save(self, changes: Changes, state: MetadataState) -> None:
        """See :class:`Metadata`."""
        self.counters.checkpoints += 1

    def acknowledged(self, page: AckPage) -> list[AckBlock]:
        """See :class:`Metadata`. Nothing is kept here, so nothing is paged out."""
        raise NotImplementedError

    def reset(self) -> None:
        """See :class:`Metadata`."""

    @property
    def disk_bytes(self) -> int:
        """Nothing is on disk."""
        return 0

    def close(self) -> None:
        """See :class:`Metadata`."""


class LmdbMetadata:
    """See the module."""

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        """*read_only*: look on while a gateway (another process) writes; only load and close."""
        self.counters = MetadataCounters()
        self._read_only = read_only
        self._directory = directory
        self._map_bytes = _MAP_BYTES
        self._environment: lmdb.Environment | None = None
        self._open: dict[str, lmdb._Database] = {}
        #: Per table, in what is being written or read: the exclusive or of the CRCs of its values.
        self._digests: dict[str, int] = {}
        #: As of the checkpoint on disk; None when that was not read yet.
        self._saved_digests: dict[str, int] | None = None
        self._lock = threading.Lock()  # LMDB must not be unmapped or grow while it is read

    def _env(self) -> lmdb.Environment:
        if self._environment is None:
            if not self._read_only:
                self._directory.mkdir(parents=True, exist_ok=True)
            environment = lmdb.open(
                str(self._directory),
                map_size=self._map_bytes,
                max_dbs=len(_TABLES),
                # The journal's own lock keeps others out; this one lets read-only tools look on.
                lock=True,
                readonly=self._read_only,
                metasync=True,
                sync=True,
            )
            self._open = {
                name: environment.open_db(name.encode(), create=not self._read_only)
                for name in _TABLES
            }
            self._environment = environment
            self._map_bytes = environment.info()["map_size"]
        return self._environment

    def load(self, progress: Callable[[str, int, int], None]) -> Loaded | None:
        """See :class:`Metadata`."""
        return self._read(lambda transaction: self._load(transaction, progress))

    def load_counters(self) -> None:
        """Only :attr:`counters`; what the checkpoint holds is not looked at.

        Raises: MetadataError, OSError.
        """
        self._read(self._load_state)

    def _read(self, take: Callable[[lmdb.Transaction], T | None]) -> T | None:
        """What *take* finds; None when there is no metadata store."""
        if not (self._directory / "data.mdb").exists():
            return None
        if not self._read_only:
            self._verify()  # what is being written cannot be verified
        try:
            with self._env().begin() as transaction:
                if any(any(table.flags().values()) for table in self._open.values()):
                    raise MetadataError(f"{self._directory}: wrong flags of a table")
                found = take(transaction)
            self._unmap_if_large()
            return found
        except (lmdb.Error, msgspec.DecodeError, struct.error, FormatError, ValueError) as error:
            raise MetadataError(f"{self._directory}: {error}") from error

    def _verify(self) -> None:
        path = self._directory / "data.mdb"
        is_plausible = _is_plausible(path)
        if path.stat().st_size > _VERIFY_BYTES_MAX and is_plausible:
            return
        try:
            problems = cast(
                "list[str]",
                lmdb_verify.verify(str(path)),  # pyright: ignore[reportUnknownMemberType]  # untyped
            )
        except lmdb_verify.VerifyError as error:
            raise MetadataError(f"{path}: {error}") from error
        if problems:
            raise MetadataError(f"{path}: {problems[0]}")

    def _load_state(self, transaction: lmdb.Transaction) -> MetadataState | None:
        """Also takes over the counters."""
        meta = self._open["meta"]
        value = transaction.get(_STATE_KEY, db=meta)
        if value is None:
            return None
        encoded = _checked("meta", _STATE_KEY, value)
        state = msgspec.msgpack.decode(encoded, type=MetadataState)
        if state.version != METADATA_VERSION:
            raise MetadataError(f"{self._directory} has version {state.version}")
        counters = _checked("meta", _COUNTERS_KEY, transaction.get(_COUNTERS_KEY, b"", db=meta))
        self.counters.become(msgspec.msgpack.decode(counters, type=MetadataCounters))
        return state

    def _load(
        self, transaction: lmdb.Transaction, progress: Callable[[str, int, int], None]
    ) -> Loaded | None:
        state = self._load_state(transaction)
        if state is None:
            return None
        database = self._open
        self._digests = {}

        def items(name: str) -> list[tuple[bytes, bytes]]:
            digest, seed = 0, _SEEDS[name]
            found: list[tuple[bytes, bytes]] = []
            for key_seen, value_seen in transaction.cursor(db=database[name]):
                key, value = bytes(key_seen), bytes(value_seen)  # they are: for the types
                content = value[_CRC_BYTES:]
                crc = crc32c(seed, key + content)
                if crc != _crc_in(value):
                    raise FormatError(f"a value of table {name} is damaged")
                found.append((key, content))
                digest ^= crc
            self._digests[name] = digest
            return found

        deliveries: dict[tuple[int, int], int] = {}
        for key, value in items("deliveries"):
            list_id, sequence = _PENDING_KEY.unpack(key)
            deliveries[list_id, sequence] = _COUNT.unpack(value)[0]
        loaded = Loaded(
            state=state,
            lists=self._load_pending(transaction, progress),
            deliveries=deliveries,
            acknowledged=[decode_block(value) for _, value in items("acknowledged")],
            speaks_of={
                _U64_KEY.unpack(key)[0]: msgspec.msgpack.decode(value, type=list[int])
                for key, value in items("files")
            },
            large={
                _U64_KEY.unpack(key)[0]: msgspec.msgpack.decode(value, type=LargeBody)
                for key, value in items("large")
            },
        )
        self._check_entries(transaction, loaded)
        self._saved_digests = {**self._digests, "meta": 0}
        return loaded

    def _check_entries(self, transaction: lmdb.Transaction, loaded: Loaded) -> None:
        """All that was found is of one checkpoint, and nothing is missing.

        A wrong bit in a tree can hide a whole branch of it, and a page that was not written can hold
        values that were right once. Raises: MetadataError, FormatError.
        """
        found = {
            "pending": sum(map(len, loaded.lists.values())),
            "deliveries": len(loaded.deliveries),
            "large": len(loaded.large),
            "acknowledged": len(loaded.acknowledged),
            "files": len(loaded.speaks_of),
        }
        entries, others = self._entries(transaction)
        for name, (count, digest) in entries.items():
            if found.get(name) != count:
                raise MetadataError(
                    f"{self._directory} has {found.get(name)} {name}, and should have {count}"
                )
            if self._digests[name] != digest:
                raise MetadataError(f"{self._directory} has {name} of another checkpoint")
        if others != self._others(transaction):
            raise MetadataError(f"{self._directory} is of two checkpoints")

    def _entries(self, transaction: lmdb.Transaction) -> _Entries:
        """Value of ``meta/entries``. Raises: MetadataError, FormatError, msgspec.DecodeError."""
        value = transaction.get(_ENTRIES_KEY, db=self._open["meta"])
        if value is None:
            raise MetadataError(f"{self._directory} does not say how many entries it has")
        return _decode_entries(_checked("meta", _ENTRIES_KEY, value))

    def _others(self, transaction: lmdb.Transaction) -> tuple[int, int]:
        """CRCs of the other values of ``meta``."""
        meta = self._open["meta"]
        state = transaction.get(_STATE_KEY, b"", db=meta)
        return _crc_in(state), _crc_in(transaction.get(_COUNTERS_KEY, b"", db=meta))

    def _load_pending(
        self, transaction: lmdb.Transaction, progress: Callable[[str, int, int], None]
    ) -> dict[int, list[Piece]]:
        lists: dict[int, list[Piece]] = {}
        digest = 0
        total = transaction.stat(self._open["pending"])["entries"]
        unpack = _PENDING_KEY.unpack
        for done, (key, value) in enumerate(transaction.cursor(db=self._open["pending"])):
            list_id, sequence = unpack(key)
            lists.setdefault(list_id, []).append(decode_piece(bytes(key), sequence, bytes(value)))
            digest ^= _crc_in(value)
            if done % 1000 == 0:
                progress("loading the checkpoint", done, total)
        self._digests["pending"] = digest
        return lists

    def acknowledged(self, page: AckPage) -> list[AckBlock]:
        """See :class:`Metadata`."""
        blocks: list[AckBlock] = []
        try:
            with self._lock:
                with self._env().begin() as transaction:
                    cursor = transaction.cursor(db=self._open["acknowledged"])
                    cursor.set_range(_U64_KEY.pack(page.first))
                    for key_seen, value in cursor:
                        key = bytes(key_seen)
                        if _U64_KEY.unpack(key)[0] > page.last:
                            break
                        blocks.append(decode_block(_checked("acknowledged", key, value)))
                self._unmap_if_large()
        except (lmdb.Error, FormatError) as error:
            raise MetadataError(f"{self._directory}: {error}") from error
        if not page.is_made_of(blocks):
            raise MetadataError(f"{self._directory} misses rows from {page.first} to {page.last}")
        return blocks

    def save(self, changes: Changes, state: MetadataState) -> None:
        """See :class:`Metadata`."""
        with self._lock:
            self._save(changes, state)

    def _save(self, changes: Changes, state: MetadataState) -> None:
        while True:
            counters = MetadataCounters(checkpoints=1)
            try:
                with self._env().begin(write=True) as transaction:
                    # As remembered: what became of the bytes on disk since then must not matter
                    # here, and is found by the next start.
                    self._digests = {**(self._saved_digests or self._stored_digests(transaction))}
                    self._save_messages(transaction, changes, counters)
                    self._save_others(transaction, changes)
                    self._put(transaction, "meta", _STATE_KEY, encode(state))
                    total = replace(self.counters)
                    total.add(counters)
                    self._put(transaction, "meta", _COUNTERS_KEY, encode(total))
                    entries = {
                        name: (transaction.stat(database)["entries"], self._digests[name])
                        for name, database in self._open.items()
                        if name != "meta"
                    }
                    entries_and_others = (entries, self._others(transaction))
                    self._put(transaction, "meta", _ENTRIES_KEY, encode(entries_and_others))
                break
            except lmdb.MapFullError as error:
                if self._map_bytes >= _MAP_BYTES_MAX:
                    raise OSError(errno.ENOSPC, "the metadata store is full") from error
                self._map_bytes *= 2
                self._env().set_mapsize(self._map_bytes)
            except lmdb.Error as error:
                # LMDB has an error of its own for a full disk, but not for a used-up quota.
                is_full = isinstance(error, lmdb.DiskError) or _OVER_QUOTA in str(error)
                number = errno.ENOSPC if is_full else errno.EIO
                raise OSError(number, f"metadata store: {error}") from error
        self._unmap_if_large()
        self._saved_digests = self._digests
        self.counters.add(counters)

    def _stored_digests(self, transaction: lmdb.Transaction) -> dict[str, int]:
        """Of the last checkpoint. Raises: OSError when that is damaged."""
        digests: dict[str, int] = dict.fromkeys(_TABLES, 0)
        if transaction.get(_ENTRIES_KEY, db=self._open["meta"]) is not None:
            try:
                entries, _ = self._entries(transaction)
            except (FormatError, msgspec.DecodeError) as error:
                raise OSError(errno.EIO, f"metadata store: {error}") from error
            digests.update((name, digest) for name, (_, digest) in entries.items())
        return digests

    def _put(self, transaction: lmdb.Transaction, name: str, key: bytes, value: bytes) -> None:
        """Put a value of any table but ``pending``, whose pieces have a CRC already."""
        self._put_with_crc(transaction, name, key, _crc_of(name, key, value) + value)

    def _put_with_crc(
        self, transaction: lmdb.Transaction, name: str, key: bytes, value: bytes
    ) -> None:
        before = transaction.replace(key, value, db=self._open[name])
        self._digests[name] ^= _crc_in(value) ^ _crc_in(before or b"")

    def _delete(self, transaction: lmdb.Transaction, name: str, key: bytes) -> bool:
        before = transaction.pop(key, db=self._open[name])
        self._digests[name] ^= _crc_in(before or b"")
        return before is not None

    def _save_messages(
        self, transaction: lmdb.Transaction, change: Changes, counters: MetadataCounters
    ) -> None:
        key_of = _PENDING_KEY.pack
        for list_id in change.dropped_lists:
            self._drop_list(transaction, list_id)
        counters.pending_deleted += change.removed
        for list_id, keys in change.pieces_gone.items():
            for key in keys:
                counters.pieces_deleted += self._delete(
                    transaction, "pending", key_of(list_id, key)
                )
        for list_id, pieces in change.pieces.items():
            for piece in pieces.values():
                key = key_of(list_id, piece.key)
                self._put_with_crc(transaction, "pending", key, encode_piece(key, piece))
                counters.pieces_put += 1
                before = bisect_right(piece.sequences, change.added_after)
                counters.pending_put += piece.count - before
        for (list_id, sequence), count in change.deliveries.items():
            key = key_of(list_id, sequence)
            if count:
                self._put(transaction, "deliveries", key, _COUNT.pack(count))
            else:
                self._delete(transaction, "deliveries", key)
        for block in change.acknowledged.values():
            self._put(transaction, "acknowledged", _U64_KEY.pack(block.first), block.encode())
            counters.acknowledged_put += 1
        for first in change.acknowledged_gone:
            counters.acknowledged_deleted += self._delete(
                transaction, "acknowledged", _U64_KEY.pack(first)
            )

    def _drop_list(self, transaction: lmdb.Transaction, list_id: int) -> None:
        for name in ("pending", "deliveries"):
            cursor = transaction.cursor(db=self._open[name])
            prefix = _U64_KEY.pack(list_id)
            found = cursor.set_range(prefix)
            while found and bytes(cursor.key()).startswith(prefix):
                self._digests[name] ^= _crc_in(cursor.value())
                found = cursor.delete()

    def _save_others(self, transaction: lmdb.Transaction, change: Changes) -> None:
        def store(name: str, key: bytes, value: bytes | None) -> None:
            if value is None:
                self._delete(transaction, name, key)
            else:
                self._put(transaction, name, key, value)

        for sequence, body in change.large.items():
            store("large", _U64_KEY.pack(sequence), _encode_or_none(body))
        for file_id, spoken in change.speaks_of.items():
            store("files", _U64_KEY.pack(file_id), encode(spoken) if spoken else None)
        for file_id in change.files_gone:
            store("files", _U64_KEY.pack(file_id), None)

    def _unmap_if_large(self) -> None:
        if self.disk_bytes > _UNMAP_BYTES:
            self.close()

    def reset(self) -> None:
        """See :class:`Metadata`."""
        self.close()
        self._saved_digests = None
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
        """See :class:`Metadata`."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def read_counters(directory: Path) -> MetadataCounters:
    """What was ever written into the metadata store of the journal in *directory*.

    Works beside a running gateway; zeros where there is no metadata store.
    Raises: MetadataError.
    """
    metadata = LmdbMetadata(NamedStorage(directory).metadata_directory, read_only=True)
    try:
        metadata.load_counters()
    finally:
        metadata.close()
    return metadata.counters


def _crc_of(name: str, key: bytes, value: bytes) -> bytes:
    """LMDB itself would believe a wrong bit in a key or value, or a page of another table."""
    return crc32c(_SEEDS[name], key + value).to_bytes(_CRC_BYTES, "little")


def _checked(name: str, key: bytes, value: bytes | memoryview) -> bytes:
    """What was given to ``_put``. Raises: FormatError."""
    content = bytes(value[_CRC_BYTES:])
    if value[:_CRC_BYTES] != _crc_of(name, key, content):
        raise FormatError(f"a value of table {name} is damaged")
    return content


def _crc_in(value: bytes | memoryview) -> int:
    """The CRC in front of a value, 0 when there is none."""
    return int.from_bytes(value[:_CRC_BYTES], "little")


_OVER_QUOTA: Final = os.strerror(errno.EDQUOT)

#: LMDB's meta page (mdb.c, MDB_page and MDB_meta, 64 bit): page size; flags of its tree of free pages and of
#: its main tree; last page; transaction id.
_META_PAGE: Final = struct.Struct("<40xIH46xH42xQQ")
#: MDB_INTEGERKEY for the free pages. With a wrong one LMDB ends the process when it takes a page.
_META_FLAGS: Final = (8, 0)


def _is_plausible(path: Path) -> bool:
    """The file reaches up to its last page: reading there through the map would be SIGBUS.

    A file may end early legally (free pages at the end were never written), so when it does not this
    only asks for a closer look. Raises: MetadataError, OSError.
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


def _encode_or_none(value: object) -> bytes | None:
    return None if value is None else encode(value)
