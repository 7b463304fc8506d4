"""A bounded first-in-first-out spool of messages in a temporary file (:mod:`._spool_file`).

Its contents are never needed after the process ends: a stored list is still in the store, and an
unstored one dies with its connection.

Frame: length of the record, sequence, delivery count (little-endian u32, u64, u32), then the
message as one MessagePack record. There is no checksum: the bytes never outlive the process that
wrote them.

Appends are gathered in memory. Threads write, read and free the file, so the event loop never
waits for a disk. One write or free runs at a time. Offsets in the sequence of all frames::

    head                written            buffer_start
     | in the file       | being written    | gathered       |
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidegate.spi import LargeBody, Message, StoredMessage, StoreIOError, TemporarySpace
from tidegate_cursors._spool_file import SpoolFile, SpoolThreads, Write

_log = logging.getLogger("tidegate.cursor.file")

#: Appended bytes to collect before a write: enough that the cost of handing them to a thread does
#: not show.
BUFFER_BYTES_MAX: Final = 256 * 1024

#: What one spool, and all of them together, may hold in memory when the disk cannot keep up.
#: Producers are slowed long before; beyond it nothing is appended.
BEHIND_BYTES_MAX: Final = 4 << 20
BEHIND_BYTES_ALL: Final = 64 << 20

#: Bytes that are read from the file at once, unless one message is larger.
_READ_BYTES_MIN: Final = 4 << 10
READ_BYTES_MAX: Final = 1 << 20

#: Errors that mean the disk is full. Others may free space, so these can pass.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

#: Pause before trying again after the disk refused, in seconds.
RETRY_S: Final = 1.0

_HEADER: Final = struct.Struct("<IQI")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Message).decode


def _nobody() -> None:
    """The default for ``changed``: does nothing."""


class Spool:
    """Messages of one list in order of arrival. All calls on the event loop.

    Attributes:
        count: messages in it that are neither read nor removed.
        last: sequence of the last message that was appended.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_buffer_start",
        "_changed",
        "_destination",
        "_directory",
        "_epoch",
        "_file",
        "_has_threads",
        "_head",
        "_is_closed",
        "_is_failed",
        "_is_left",
        "_is_warned",
        "_job",
        "_large",
        "_position",
        "_removed",
        "_retry_at",
        "_space",
        "_threads",
        "_told",
        "_write_at",
        "_writing",
        "_written",
        "count",
        "last",
    )

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        destination: str,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        space: TemporarySpace | None = None,
        changed: Callable[[], None] = _nobody,
        threads: SpoolThreads | None = None,
    ) -> None:
        """Make an empty spool; the file is made when the buffer is written for the first time.

        Args:
            directory: where the temporary file is made.
            limit_bytes: of unread frames.
            destination: named in logs and errors.
            buffer_bytes: appended bytes to collect before they are written.
            space: accounts for the file; None: nothing does.
            changed: called when a write has changed ``buffered_bytes``.
            threads: for all disk work; None: its own.
        """
        self._buffer_bytes = self._write_at = min(buffer_bytes, BUFFER_BYTES_MAX)
        self._directory = directory
        self._destination = destination
        self._space = space or TemporarySpace()
        self._file = SpoolFile(directory, limit_bytes, self._space)
        self._changed = changed
        self._threads = threads or SpoolThreads()
        self._has_threads = False
        self._job: asyncio.Future[None] | None = None
        self._writing = bytearray()  # [_written, ...): on its way to the file
        self._buffer = bytearray()  # [_buffer_start, ...): to be written next
        self._head = 0  # offset of the first frame that was not read
        self._written = 0  # offset after what is in the file
        self._buffer_start = 0
        self._told = 0  # unwritten bytes reported to `space`
        self._epoch = 0  # changes when the head moves, so that a read in a thread knows
        self._is_left = False  # the whole file may be freed
        self._is_failed = False  # the disk is broken; nothing is appended until it is drained
        self._retry_at = 0.0  # the disk had no room; not asked again before
        self._is_warned = False  # about that, since the file last grew
        self._is_closed = False
        self._removed: set[int] = set()
        # Large bodies live as long as their handles, and a decoded one is not the same object.
        self._large: dict[int, LargeBody] = {}
        self._position = 0  # sequence of the last message that was read
        self.count = 0
        self.last = 0

    @property
    def buffered_bytes(self) -> int:
        """Memory held by appended bytes that are not in the file yet."""
        return len(self._writing) + len(self._buffer)

    @property
    def spooled_bytes(self) -> int:
        """Bytes of all frames in it, at most the limit."""
        return self._end - self._head

    @property
    def _end(self) -> int:
        return self._buffer_start + len(self._buffer)

    def append(
        self,
        messages: Sequence[StoredMessage],
        buffer_bytes: int = BUFFER_BYTES_MAX,
        *,
        even_behind: bool = False,
    ) -> int:
        """Append as many of the first *messages* as there is room for.

        Args:
            buffer_bytes: to collect before a write, this time, if fewer than usual.
            even_behind: append as many as the file has room for, however much is unwritten.

        Returns: how many were appended: fewer than all when the limit is reached, the disk is far
            behind, or it refuses. Never raises.
        """
        if self._is_failed:
            return 0
        if not self.count and messages:
            self._position = messages[0].sequence - 1
        buffer = self._buffer
        self._write_at = min(buffer_bytes, self._buffer_bytes)
        room = self._file.room(self._head, self._end)
        behind = room if even_behind else self.behind_max - self.buffered_bytes
        appended = 0
        for message in messages:
            record = _encode(message.message)
            size = _HEADER.size + len(record)
            if size > room or (size > behind and (buffer or self._writing)):
                break
            room -= size
            behind -= size
            buffer += _HEADER.pack(len(record), message.sequence, message.delivery_count)
            buffer += record
            appended += 1
            if message.message.large is not None:
                self._large[message.sequence] = message.message.large
        if appended:
            self.count += appended
            self.last = messages[appended - 1].sequence
            self._tell()
        self._go_on()
        return appended

    @property
    def behind_max(self) -> int:
        """What it may hold in memory now: more while a working disk is slow."""
        if self._retry_at:
            return self._write_at
        left = BEHIND_BYTES_ALL - self._space.unwritten + self.buffered_bytes
        return max(self._write_at, min(BEHIND_BYTES_MAX, left))

    def _tell(self) -> None:
        now = self.buffered_bytes
        self._space.unwritten += now - self._told
        self._told = now

    # --- the disk ------------------------------------------------------------------------------

    @property
    def is_writing(self) -> bool:
        """A write is running, so ``buffered_bytes`` will go down soon."""
        return self._job is not None

    def _go_on(self) -> None:
        """Start the next job, if there is one and none is running."""
        if self._job is not None:
            return
        file = self._file
        if self._is_left:
            if self._is_closed and file.is_open:
                self._start(file.close, self._emptied)
                return
            if not file.is_empty:
                self._start(file.empty, self._emptied)
                return
            self._is_left = False
        if len(self._buffer) < max(1, self._write_at) or self._is_failed:
            return
        if self._retry_at and asyncio.get_running_loop().time() < self._retry_at:
            return
        write = file.prepare_write(self._buffer_start, len(self._buffer))
        if write is None:
            self._refuse("broker.temporary_space is used up")
            return
        data = self._writing = self._buffer
        self._buffer = bytearray()
        self._buffer_start += len(data)
        self._start(
            lambda: file.write(write, data), lambda error: self._end_write(write, data, error)
        )

    def _start(self, act: Callable[[], None], over: Callable[[BaseException | None], None]) -> None:
        """Run *act* in a thread, then *over* on the loop."""

        def done(job: asyncio.Future[None]) -> None:
            self._job = None
            over(InterruptedError("the gateway stops") if job.cancelled() else job.exception())
            self._go_on()
            self._tell()
            self._changed()

        if not self._has_threads:
            self._has_threads = True
            self._threads.join()
        self._job = self._threads.run(act)
        self._job.add_done_callback(done)

    def _end_write(self, write: Write, data: bytearray, error: BaseException | None) -> None:
        self._file.end_write(write)
        if self._writing is not data:  # all of it was dropped meanwhile
            return
        self._writing = bytearray()
        if error is None:
            self._retry_at = 0.0
            self._is_warned = self._is_warned and not write.growth
            self._written = self._buffer_start
            self._file.release(self._head)
            return
        # The unread part stays in memory, where it can still be read.
        del data[: max(0, self._head - self._written)]
        self._buffer_start -= len(data)
        self._written = self._buffer_start
        self._buffer[:0] = data
        self._refuse(error)

    def _refuse(self, error: object) -> None:
        """The disk has no room, or is broken."""
        is_full = not isinstance(error, Exception) or (
            isinstance(error, OSError) and error.errno in _NO_ROOM
        )
        if not self._is_warned or not is_full:  # once, until the disk recovers
            self._is_warned = True
            _log.warning(
                "spool refused destination=%s directory=%s error=%s",
                self._destination,
                self._directory,
                error,
            )
        self._is_failed = not is_full
        self._retry_at = asyncio.get_running_loop().time() + RETRY_S

    def _emptied(self, error: BaseException | None) -> None:
        self._is_left = self._is_closed and self._file.is_open  # that came meanwhile
        if error is None:
            self._file.end_empty()
        else:
            _log.warning("spool not truncated destination=%s error=%s", self._destination, error)

    # --- reading -------------------------------------------------------------------------------

    async def read(self, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Take the first messages out: at most *limit*, about *bytes_max* of frames, at least one.

        An empty list means that the spool is empty, or that its head moved during the read.

        Raises: StoreIOError (the file cannot be read; the spool is as before).
        Cancellation: safe, nothing is taken.
        """
        size = self._read_bytes(limit, bytes_max)
        while self._head < self._written:
            epoch = self._epoch
            parts = self._file.prepare_read(self._head, min(size, self._written - self._head))
            try:
                data = await self._threads.run(partial(self._file.read, parts))
            except (OSError, ValueError) as error:  # ValueError: closed meanwhile
                if epoch != self._epoch:
                    return []
                raise self._unreadable(error) from error
            if epoch != self._epoch:
                return []  # what was read has been dropped, and perhaps overwritten, meanwhile
            size = self._first_bytes(data)
            if size <= len(data):
                return self._take_frames(data, limit, bytes_max)
        return self._take_frames(self._unwritten(size), limit, bytes_max)

    def read_now(self, limit: int, bytes_max: int) -> list[StoredMessage]:
        """As :meth:`read`, on the event loop: the oldest must make room at once."""
        size = self._read_bytes(limit, bytes_max)
        while self._head < self._written:
            parts = self._file.prepare_read(self._head, min(size, self._written - self._head))
            try:
                data = self._file.read(parts)
            except (OSError, ValueError) as error:
                raise self._unreadable(error) from error
            size = self._first_bytes(data)
            if size <= len(data):
                return self._take_frames(data, limit, bytes_max)
        return self._take_frames(self._unwritten(size), limit, bytes_max)

    def _read_bytes(self, limit: int, bytes_max: int) -> int:
        """How much to read for *limit* messages: their average size, and a little more."""
        frames = self.count + len(self._removed)
        wanted = limit * (self.spooled_bytes + frames) // max(1, frames)
        return max(_READ_BYTES_MIN, min(wanted + wanted // 4, bytes_max, READ_BYTES_MAX))

    def _first_bytes(self, data: bytes) -> int:
        """Size of the frame that *data* begins with. Raises: StoreIOError: it is damaged."""
        found = _HEADER.size + _HEADER.unpack_from(data)[0] if len(data) >= _HEADER.size else 0
        if not 0 < found <= self._written - self._head:
            raise self._unreadable(f"a frame of {found} bytes cannot be where it was found")
        return found

    def _unreadable(self, error: object) -> StoreIOError:
        return StoreIOError(f"{self._destination}: cannot read the spool: {error}")

    def _unwritten(self, size: int) -> bytes:
        """About *size* bytes of the frames at the head, which are in memory; at least one frame."""
        source, offset = self._writing, self._head - self._written
        if offset >= len(source):
            source, offset = self._buffer, self._head - self._buffer_start
        if offset < len(source):
            size = max(size, _HEADER.size + _HEADER.unpack_from(source, offset)[0])
        return bytes(source[offset : offset + size])

    def _take_frames(self, frames: bytes, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Decode the frames at the head, move the head past them, leave out removed ones."""
        data = memoryview(frames)
        taken: list[StoredMessage] = []
        removed = self._removed
        offset = 0
        sequence = self._position
        while offset + _HEADER.size <= len(data) and len(taken) < limit:
            size, sequence_here, delivery_count = _HEADER.unpack_from(data, offset)
            end = offset + _HEADER.size + size
            if end > len(data) or (taken and end > bytes_max):
                break
            sequence = sequence_here
            large = self._large.pop(sequence, None) if self._large else None
            if sequence in removed:
                removed.discard(sequence)
            else:
                message = self._decode(data[offset + _HEADER.size : end])
                if large is not None:
                    message = msgspec.structs.replace(message, large=large)
                taken.append(StoredMessage.of(sequence, message, delivery_count))
            offset = end
        self.count -= len(taken)
        self._position = sequence
        self._advance(offset)
        return taken

    def _decode(self, record: memoryview) -> Message:
        try:
            return _decode(record)
        except msgspec.DecodeError as error:
            raise StoreIOError(f"{self._destination}: the spool is damaged: {error}") from error

    def _advance(self, size: int) -> None:
        self._epoch += 1
        head = self._head = self._head + size
        if head > self._buffer_start:  # frames that never left the buffer
            del self._buffer[: head - self._buffer_start]
            self._buffer_start = head
        if head > self._written and not self._writing:
            self._written = head
        self._file.release(head)
        if not self.count:
            self.clear()
            return
        if self._retry_at and self._file.has_place(self._buffer_start, len(self._buffer)):
            # What was freed is enough: a caller that drops the oldest need not drop more.
            self._retry_at = 0.0
            self._go_on()
        self._tell()

    # --- out of order --------------------------------------------------------------------------

    def claim(self, sequences: set[int]) -> set[int]:
        """Take messages out of order. Returns those that were here; see :meth:`remove`."""
        found = self._here(sequences) if self.count else set[int]()
        self.remove(found)
        return found

    def _here(self, sequences: set[int]) -> set[int]:
        """Those of *sequences* that were neither read nor removed."""
        first, last = self._position, self.last
        return {sequence for sequence in sequences if first < sequence <= last} - self._removed

    def put_back(self, sequence: int) -> bool:
        """A claimed message comes back; False when its place has been read or given up."""
        if not self.count or sequence <= self._position or sequence not in self._removed:
            return False
        self._removed.discard(sequence)
        self.count += 1
        return True

    def remove(self, sequences: set[int]) -> int:
        """Messages left the list. Returns how many of them were in the spool.

        Every sequence between head and end is assumed to be here: the caller removes only
        messages that were offered and not taken.
        """
        if not self.count:
            return 0
        here = self._here(sequences)
        known = min(len(here), self.count)
        self._removed |= here
        self.count -= known
        if not self.count:
            self.clear()
        return known

    # --- the end -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything, and free the disk space once the running job is done."""
        self._epoch += 1
        self._head = self._written = self._buffer_start = self._file.start(self._end)
        self._writing = bytearray()
        self._buffer.clear()
        self._file.release_all()
        self._removed.clear()
        self._large.clear()
        self._position = self.last
        if self._is_failed:
            self._retry_at = 0.0
        self._is_failed = self._is_closed
        self._is_left = True
        self.count = 0
        self._go_on()
        self._tell()

    async def close(self) -> None:
        """Free memory and file. Idempotent. Cancellation: safe; it still closes."""
        if not self._is_closed:
            self._is_closed = True
            self.clear()
        try:
            while self._job is not None:
                await asyncio.wait([self._job])
        finally:
            if self._has_threads:
                self._has_threads = False
                self._threads.leave()
        self._changed = _nobody
