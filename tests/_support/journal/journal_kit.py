"""What the journal's tests share: messages, a store in a directory, and a storage with faults."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import (
    Durability,
    Operation,
    RecoveredState,
    StoreContext,
    StoredMessage,
    WriteBatch,
)
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journal.index import effects, index, slices
from tidegate_store_journal.index import pending as pending_list
from tidegate_store_journal.log.mapped import with_mapping
from tidegate_store_journal.write import encode

#: What a process of a test's own has to have on its path.
SUPPORT = os.pathsep.join(str(Path(__file__).parents[1] / room) for room in ("journal", "stores"))
ANY_SIZE = 1 << 40
KB = 1 << 10


def in_single_steps(patch: pytest.MonkeyPatch) -> None:
    """Each batch is encoded and taken into the index step by step, a turn of the loop each."""
    patch.setattr(slices, "SLICE_S", 0)
    patch.setattr(encode, "STEP_OPERATIONS", 1)
    patch.setattr(encode, "LONG_BYTES", 0)
    patch.setattr(encode, "PART_BYTES", 0)
    patch.setattr(effects, "WIDE_MIN", 2)
    for module in (effects, index):
        patch.setattr(module, "STEP_ENTRIES", 1)
    for module in (index, pending_list):
        patch.setattr(module, "SEAL_ENTRIES", 2)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what comes about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def killed_after(command: Sequence[str], enough: int, acked: set[int]) -> int:
    """Run a program that writes and says ``added LAST`` and ``acked LAST`` of 15, and kill it.

    Args: enough: messages were added when it is killed; acked: those that were acknowledged join it.
    Returns: the last one that was added.
    """
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    added = 0
    for line in process.stdout:  # to its end: what was confirmed just before the kill counts
        what, number = line.split()
        if what == b"added":
            added = int(number)
        else:
            acked |= set(range(int(number) - 14, int(number) + 1))
        if added >= enough:
            process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return added


def options(**changes: Any) -> JournalOptions:
    """Small files, and no checkpoint or cleanup by the clock unless asked for."""
    values: dict[str, Any] = {
        "journal_max_file_length": 64 * KB,
        "checkpoint_interval": 3600.0,
        "cleanup_interval": 3600.0,
    }
    return JournalOptions(**{**values, **changes})


def writer_options(background: float | None, **changes: Any) -> JournalOptions:
    """Options of a writer that syncs after *background* seconds what was only written; None: never."""
    values: dict[str, Any] = {"journal_disk_sync_strategy": "never"}
    if background is not None:
        values = {
            "journal_disk_sync_strategy": "periodic",
            "journal_disk_sync_interval": background,
        }
    return JournalOptions(**values, **changes)


def new_store(
    where: Path,
    storage: Any = None,
    /,
    *,
    keep: bool = False,
    persistent: bool = True,
    disk_free_limit: int = 0,
    **changes: Any,
) -> JournalStore:
    """A store that is not open."""
    context = StoreContext(
        where,
        "test",
        persistent=persistent,
        keep_acknowledged=keep,
        disk_free_limit=disk_free_limit,
    )
    return JournalStore(context, options(**changes), storage)


async def opened(
    where: Path, storage: Any = None, /, **changes: Any
) -> tuple[JournalStore, RecoveredState]:
    """A store that is open, and what it recovered."""
    store = new_store(where, storage, **changes)
    return store, await store.open()


async def write(store: JournalStore, *operations: Operation) -> None:
    """One synced batch."""
    await store.write(WriteBatch(list(operations)))


async def write_only(store: JournalStore, *operations: Operation) -> None:
    """One batch that is only written."""
    await store.write(WriteBatch(list(operations), Durability.WRITTEN))


async def checkpoint(store: JournalStore, *, cleanup: bool = False, force: bool = False) -> int:
    """What the store does by the clock. Returns: files that it has put away."""
    return await store._checkpointer.run(force=force, cleanup=cleanup)  # pyright: ignore[reportPrivateUsage]


async def pending(store: JournalStore, pending_list: int = 1) -> list[int]:
    """Sequences in a list, read page by page and compared with the bodies."""
    found: list[int] = []
    while True:
        after = found[-1] if found else 0
        page = await store.page_in(pending_list, after, 50, ANY_SIZE)
        if not page:
            return found
        check_bodies(page)
        found += [item.sequence for item in page]


def check_bodies(page: Sequence[StoredMessage]) -> None:
    """Every body says the sequence it was stored under."""
    for item in page:
        assert item.message.body.split()[0] == b"%d" % item.sequence


def data_files(directory: Path) -> list[Path]:
    """Data files of the journal below *directory*, by id."""
    return sorted((directory / "journal").glob("journal-*.data"))


def unlink_bindings(storage: Any) -> None:
    """As if there had been no carry yet."""
    for name in storage.list():
        if name.startswith("bindings-"):
            storage.unlink(name)


def damage_byte(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def killed(directory: Path, target: Path) -> Path:
    """What a SIGKILL at this moment would leave: a copy of everything written so far."""
    while True:
        before = _times(directory)
        with contextlib.suppress(shutil.Error):  # a file went in the middle
            shutil.copytree(directory, target, ignore=shutil.ignore_patterns("*.tmp"))
            if _times(directory) == before:
                return target
        # A thread of the store was in the middle of a checkpoint: this would be of two moments.
        shutil.rmtree(target)


def _times(directory: Path) -> dict[Path, int]:
    """When each file below *directory* was written."""
    found: dict[Path, int] = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.stat().st_mtime_ns
    return found


# ----------------------------------------------------------------------------- journal types

JOURNAL_TYPES = ("NIO", "ASYNCIO", "MAPPED")


class ShuffledRing:
    """A ring over any files, for ``RingStorage``: carries out what is under way in any order.

    Attributes: calls: what was carried out, as "write", "write synced" or "sync". under_way: most
        requests at once. results: what the next writes report instead of their success; a positive
        one is how many bytes they write.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int = 0) -> None:
        self._loop = loop
        self._chance = random.Random(seed)
        self._waiting: list[tuple[str, Callable[[], int], Callable[[int], None]]] = []
        self.calls: list[str] = []
        self.under_way = 0
        self.results: list[int] = []
        self.is_closed = False

    def write(
        self, file: Any, data: bytes, offset: int, done: Callable[[int], None], *, synced: bool
    ) -> None:
        def write() -> int:
            result = self.results.pop(0) if self.results else len(data)
            if result > 0:
                file.pwritev([data[:result]], offset)
                if synced:
                    file.datasync()
            return result

        self._submit("write synced" if synced else "write", write, done)

    def datasync(self, file: Any, done: Callable[[int], None]) -> None:
        def sync() -> int:
            file.datasync()
            return 0

        self._submit("sync", sync, done)

    def _submit(self, call: str, act: Callable[[], int], done: Callable[[int], None]) -> None:
        assert not self.is_closed
        self._waiting.append((call, act, done))
        self.under_way = max(self.under_way, len(self._waiting))
        self._loop.call_soon(self._carry_out)

    def _carry_out(self) -> None:
        call, act, done = self._waiting.pop(self._chance.randrange(len(self._waiting)))
        self.calls.append(call)
        try:
            result = act()
        except OSError as error:
            result = -(error.errno or errno.EIO)
        done(result)

    def close(self) -> None:
        self.is_closed = True


def with_ring(storage: Any, seed: int = 0) -> Any:
    """*storage*, made able to take requests."""

    def make_ring(loop: asyncio.AbstractEventLoop, _entries: int) -> ShuffledRing:
        return ShuffledRing(loop, seed)

    storage.make_ring = make_ring
    return storage


def with_maps(storage: Any, window_bytes: int = 4 * mmap.ALLOCATIONGRANULARITY) -> Any:
    """*storage*, whose data files are written through mappings as MAPPED does it.

    *window_bytes*: small, so that it moves all the time and some batches do not fit.
    """
    storage.wrap = partial(with_mapping, window_bytes=window_bytes)
    return storage


# ------------------------------------------------------------------------------- faulty storage


class _Node:
    def __init__(self) -> None:
        self.now = bytearray()
        self.stable = bytearray()
        self.unsynced: list[tuple[int, bytes]] = []


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


class CrashFile:
    """A file of :class:`CrashStorage`."""

    def __init__(self, storage: CrashStorage, name: str, node: _Node) -> None:
        self._storage = storage
        self._name = name
        self._node = node

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        joined = b"".join(buffers)
        error = self._storage.fault("pwritev", self._name)
        if error is not None:
            # A full disk may take a part.
            joined = joined[: len(joined) // 2]
        self._storage.written += len(joined)
        _put(self._node.now, offset, joined)
        self._node.unsynced.append((offset, joined))
        if error is not None:
            raise error

    def pread(self, length: int, offset: int) -> bytes:
        error = self._storage.fault("pread", self._name)
        if error is not None:
            raise error
        return bytes(self._node.now[offset : offset + length])

    def datasync(self) -> None:
        error = self._storage.fault("datasync", self._name)
        if error is not None:
            raise error
        self._storage.syncs += 1
        self._node.stable = bytearray(self._node.now)
        self._node.unsynced.clear()

    def preallocate(self, length: int) -> None:
        error = self._storage.fault("preallocate", self._name)
        if error is not None:
            raise error
        if len(self._node.now) < length:
            _put(self._node.now, length, b"")

    @property
    def length(self) -> int:
        return len(self._node.now)

    def close(self) -> None: ...


class CrashStorage:
    """Files in memory that forget what was not synced when :meth:`crash` is called.

    Attributes: fault: called before each operation with its name and the file's; returns the error
        to raise, or None. free: what free_bytes says. syncs: files synced so far; written: bytes.
    """

    durable = True

    def __init__(self, metadata_directory: Path | None = None) -> None:
        self.metadata_directory = metadata_directory
        self.fault: Callable[[str, str], OSError | None] = lambda _operation, _name: None
        self.free = 1 << 40
        self.syncs = 0
        self.written = 0
        self._names: dict[str, _Node] = {}
        self._stable_names: dict[str, _Node] = {}

    def crash(self, seed: int | None = None) -> CrashStorage:
        """What is there after a power cut.

        Without *seed* nothing unsynced survives; with one, each unsynced write survives whole, in
        part, or not at all, independently of the others.
        """
        chance = random.Random(seed)
        after = CrashStorage(self.metadata_directory)
        for name, node in self._stable_names.items():
            copy = after._names[name] = after._stable_names[name] = _Node()
            copy.now = bytearray(node.stable)
            if seed is not None:
                for offset, piece in node.unsynced:
                    fate = chance.randrange(3)
                    if fate:
                        end = len(piece) if fate == 1 else chance.randrange(len(piece) + 1)
                        _put(copy.now, offset, piece[:end])
            copy.stable = bytearray(copy.now)
        return after

    def flip(self, name: str, offset: int) -> None:
        """Damage one bit of a file."""
        node = self._names[name]
        node.now[offset] ^= 0x10
        node.stable = bytearray(node.now)

    def lock(self, owner: str) -> None: ...

    def unlock(self) -> None: ...

    def open(self, name: str, *, create: bool = False) -> CrashFile:
        if create:
            self._names[name] = _Node()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return CrashFile(self, name, self._names[name])

    def list(self) -> Sequence[str]:
        return list(self._names)

    def rename(self, old: str, new: str) -> None:
        self._names[new] = self._names.pop(old)

    def unlink(self, name: str) -> None:
        self._names.pop(name, None)

    def sync_directory(self) -> None:
        self._stable_names = dict(self._names)

    def free_bytes(self) -> int:
        return self.free

    def describe(self, name: str) -> str:
        return f"crash:{name}"

    def folder(self, name: str) -> CrashFolder:
        return CrashFolder(self, f"{name}|")

    def make_folder(self, name: str) -> None: ...


class CrashFolder:
    """The files of a :class:`CrashStorage` whose names begin with *prefix*, as a directory of their own."""

    def __init__(self, storage: CrashStorage, prefix: str) -> None:
        self._storage = storage
        self._prefix = prefix

    def open(self, name: str, *, create: bool = False) -> CrashFile:
        return self._storage.open(self._prefix + name, create=create)

    def list(self) -> Sequence[str]:
        length = len(self._prefix)
        return [name[length:] for name in self._storage.list() if name.startswith(self._prefix)]

    def rename(self, old: str, new: str) -> None:
        self._storage.rename(self._prefix + old, self._prefix + new)

    def unlink(self, name: str) -> None:
        self._storage.unlink(self._prefix + name)

    def sync_directory(self) -> None:
        self._storage.sync_directory()

    def describe(self, name: str) -> str:
        return self._storage.describe(self._prefix + name)


def full(operation: str = "pwritev") -> Callable[[str, str], OSError | None]:
    """A fault: no room for *operation* on data files."""

    def fault(name: str, file: str) -> OSError | None:
        if name == operation and ".data" in file:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    return fault
