"""Large bodies in files of their own: docs/store-journal.md, "Large messages".

A body has one file, written once, front to back, and named before its first byte. The record of a
message that refers to it is written only once file and directory are synced. So a file without such
a record (an upload cut off by a crash, or abandoned) is an *orphan* and is removed at the next
start, whatever it contains. A file is released after a checkpoint in which no message refers to it,
and not while a handle to it is alive in memory: it is removed, or kept as a *free* file, which the
next body of about its size overwrites. So a file may be longer than its body.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tidegate.spi import CorruptRecordError, LargeBody, format_size
from tidegate.spi.private_files import open_regular
from tidegate_store_journal.bodies.kept import FREE_BYTES_MAX, RECENT_BYTES_MAX, RecentBodies
from tidegate_store_journal.bodies.transfer import (
    BODY_SUFFIX,
    BodyFiles,
    Download,
    Upload,
    file_name_of,
)
from tidegate_store_journal.index.largereferences import LargeReferences
from tidegate_store_journal.log.format import crc32c
from tidegate_store_journal.log.storage import Storage, length_of
from tidegate_store_journal.options import JournalOptions

#: Threads that write and sync large bodies: separate, because syncing a large body can take
#: seconds. More would only make the disk seek.
LARGE_THREADS: Final = 4
#: Threads that read them: readers do not wait for writers' syncs.
READING_THREADS: Final = 2
#: For a store whose bodies are only read: no body is this large.
_NO_NEW_BODIES: Final = 1 << 62
_LOST_SUFFIX: Final = ".lost"
_FREE_SUFFIX: Final = ".free"


class LargeFiles(BodyFiles):
    """The :class:`~tidegate.spi.LargeBodies` of a journal; one directory of files."""

    def __init__(self, storage: Storage, options: JournalOptions, *, free_limit: int = 0) -> None:
        super().__init__(storage, RecentBodies(RECENT_BYTES_MAX), options, free_limit)
        self._size_min = options.large_message_min_size or _NO_NEW_BODIES
        self._references = LargeReferences()
        self._sizes: dict[str, int] = {}
        self._holders: dict[str, dict[int, weakref.ref[LargeBody]]] = {}
        self._uploads: set[Upload] = set()

    # ------------------------------------------------------------------- tidegate.spi.LargeBodies

    @property
    def size_min(self) -> int:
        """See LargeBodies."""
        return self._size_min

    def create(self, size: int | None) -> Upload:
        """See LargeBodies. Raises: StoreClosedError."""
        upload = Upload(self, size, self._ended)
        self._uploads.add(upload)
        return upload

    def open(self, body: LargeBody) -> Download:
        """See LargeBodies. Raises: StoreClosedError."""
        download = Download(self, body)
        self.hold(body)
        return download

    def _ended(self, upload: Upload, body: LargeBody | None) -> None:
        """A complete body stays while *body* is alive or a message refers to it."""
        self._uploads.discard(upload)
        if body is not None:
            self._sizes[body.id] = upload.disk_bytes
            self.hold(body)
            self._references.add_loose(body)

    # ---------------------------------------------------------------------------- the store's side

    def release(self) -> None:
        """Release the directory, and remove free files. Idempotent. Blocks."""
        for name in self.free.give_up():
            self.remove_file(name)
        self.storage.unlock()

    def prepare(self, owner: str, references: LargeReferences, keeps_orphans: bool) -> list[str]:
        """Lock the directory, remove orphans, and check for missing files. Blocks.

        Args: keeps_orphans: the journal may have lost records, so an unreferenced file may be all
            that is left of a message: keep it under another name, which nothing reads.
        Returns: a sentence for each thing found. Raises: StoreLockedError, OSError.
        """
        self.storage.lock(owner)
        notes: list[str] = []
        found: dict[str, int] = {}
        orphans = orphan_bytes = 0
        for name in self.storage.list():
            if name.endswith(_FREE_SUFFIX):
                self.storage.unlink(name)
            if not name.endswith(BODY_SUFFIX):
                continue
            body_id = name.removesuffix(BODY_SUFFIX)
            length = length_of(self.storage, name)
            if body_id in references:
                found[body_id] = length
            else:
                if keeps_orphans:
                    self.storage.rename(name, name + _LOST_SUFFIX)
                else:
                    self.storage.unlink(name)
                orphans += 1
                orphan_bytes += length
        if orphans:
            notes.append(
                f"{orphans} files of large messages that no message names "
                f"({format_size(orphan_bytes)}) were "
                + (f"renamed to *{BODY_SUFFIX}{_LOST_SUFFIX}." if keeps_orphans else "removed.")
            )
        for sequence, body in references.bodies.items():
            if found.get(body.id, 0) < body.size:
                where = self.storage.describe(file_name_of(body.id))
                what = "is missing" if body.id not in found else "is cut off"
                notes.append(
                    f"The body of message {sequence} {what}: {where}. Restore the file from a "
                    "copy; until then the message cannot be delivered."
                )
        self._sizes = found
        self._references = references
        references.on_gone = self.recent.drop
        return notes

    def stop(self) -> None:
        """Accept nothing more; uploads in progress end with StoreClosedError."""
        for upload in list(self._uploads):
            upload.abandon()
        self._executor = self._reading = None

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files, uploads and free ones included."""
        uploads = sum(upload.disk_bytes for upload in self._uploads)
        return sum(self._sizes.values()) + uploads + self.free.bytes

    def hold(self, body: LargeBody) -> None:
        """The file of *body* stays while this very object is alive."""
        key = id(body)
        holders = self._holders.setdefault(body.id, {})
        # The callback may run in any thread; removing one key of a dict is atomic.
        holders[key] = weakref.ref(body, lambda _: holders.pop(key, None))

    async def keep_lost(self, body: LargeBody) -> str:
        """Put the file of *body* aside: the record of its only message is damaged and dropped.

        Returns: how to name it to the operator; "" when others need it, or it is not there.
        Raises: OSError.
        """
        if self._references.is_shared(body.id) or self._executor is None:
            return ""
        name = file_name_of(body.id)

        def work() -> str:
            try:
                self.storage.rename(name, name + _LOST_SUFFIX)
            except FileNotFoundError:
                return ""
            self.storage.sync_directory()
            return self.storage.describe(name + _LOST_SUFFIX)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def sweep(self, loose: Iterable[str]) -> int:
        """Release the files of bodies that are no longer needed.

        Args: loose: ids of those that no message in the checkpoint needs.
        Returns: how many. Raises: OSError; the rest is given up next time.
        """
        references, holders = self._references, self._holders
        self.recent.drop_if_idle()
        gone = {
            body_id: self._sizes.get(body_id, 0)
            for body_id in loose
            if body_id not in references and not holders.get(body_id)
        }
        idle = self.free.give_up_if_idle()
        if not (gone or idle) or self._executor is None:
            return 0
        await asyncio.get_running_loop().run_in_executor(self._executor, self._give_up, gone, idle)
        for body_id in gone:
            holders.pop(body_id, None)
            self._sizes.pop(body_id, None)
            self.suspects.discard(body_id)
            references.loose.discard(body_id)
        return len(gone)

    def _give_up(self, gone: dict[str, int], idle: list[str]) -> None:
        for name in idle:
            self.storage.unlink(name)
        keeps = bool(gone) and not self.lacks(FREE_BYTES_MAX)
        for body_id, length in gone.items():
            name, free = file_name_of(body_id), body_id + _FREE_SUFFIX
            if keeps and length:
                try:
                    self.storage.rename(name, free)
                except FileNotFoundError:
                    continue
                if self.free.give(free, length):
                    continue
                name = free
            self.storage.unlink(name)


def read_large(directory: Path, body: LargeBody, piece_bytes: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a large body in pieces, for tools; works beside a running gateway. Blocks.

    Args: directory: of the large bodies (``large_messages_directory``).
    Raises: CorruptRecordError when the file is missing, cut off, or (after the last piece) has
        another checksum; OSError.
    """
    path = directory / file_name_of(body.id)
    left, checksum = body.size, 0
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            while left:
                data = file.read(min(left, piece_bytes))
                if not data:
                    raise CorruptRecordError(
                        f"the file ends before byte {body.size}", location=str(path)
                    )
                left -= len(data)
                checksum = crc32c(checksum, data)
                yield data
    except FileNotFoundError:
        raise CorruptRecordError("the file is missing", location=str(path)) from None
    if checksum != body.checksum:
        raise CorruptRecordError("the bytes are damaged (checksum)", location=str(path))
