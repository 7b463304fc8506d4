"""A bounded first-in-first-out spool of messages in a temporary file.

The file is a ring: logical offsets only grow, the physical place is the offset modulo the limit,
so that neither a consumer that never quite catches up nor dropping the oldest ever needs more than
the limit. It has no name in the file system (``O_TMPFILE`` or unlinked at once), so nothing is left
behind when the gateway is killed. What is in it is never needed after that: a stored list is
still in the store, an unstored one dies with its connection.

Frame: length of the record, sequence, delivery count (little-endian u32, u64, u32), then the
message as one MessagePack record. There is no checksum: the bytes never outlive the process that
wrote them.

Appends are buffered and written on the event loop (into the page cache, up to 256 KiB at a time); reads
run in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from tidegate.spi import LargeBody, Message, StoredMessage, StoreIOError, TemporarySpace

_log = logging.getLogger("tidegate.cursor.file")

#: Appended bytes that are collected at most before they are written: large enough that the cost of
#: the system call does not show, small enough that one write does not hold up the event loop.
BUFFER_BYTES_MAX: Final = 256 * 1024

#: Bytes that are read from the file at once.
READ_BYTES: Final = 256 * 1024

_HEADER: Final = struct.Struct("<IQI")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Message).decode


class Spool:
    """Messages of one list in the order they came.

    Attributes:
        count: messages in it that are neither read nor removed.
        last: sequence of the last message that was appended.
    """

    __slots__ = (
        "_buffer",
        "_buffer_bytes",
        "_destination",
        "_directory",
        "_epoch",
        "_file",
        "_file_bytes",
        "_head",
        "_is_failed",
        "_large",
        "_limit_bytes",
        "_position",
        "_removed",
        "_space",
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
    ) -> None:
        """Make an empty spool; the file is made when the buffer is written for the first time.

        Args:
            directory: where the temporary file is made.
            limit_bytes: of frames that are not read.
            destination: for messages.
            buffer_bytes: appended bytes to collect before they are written.
            space: of which its file is a part; None: of none.
        """
        self._buffer_bytes = min(buffer_bytes, BUFFER_BYTES_MAX)
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._destination = destination
        self._file: IO[bytes] | None = None
        self._space = space or TemporarySpace()
        self._file_bytes = 0  # what the file takes
        self._buffer = bytearray()  # [_written, _written + len(_buffer)): not in the file yet
        self._head = 0  # logical offset of the first frame that was not read
        self._written = 0  # logical offset behind what is in the file
        self._epoch = 0  # changes when the head moves, so that a read in a thread knows
        self._is_failed = False  # the file system refused; nothing is appended until it is drained
        self._removed: set[int] = set()
        # Large bodies live as long as their handles, and a decoded one is not the same object.
        self._large: dict[int, LargeBody] = {}
        self._position = 0  # sequence of the last message that was read
        self.count = 0
        self.last = 0

    @property
    def buffered_bytes(self) -> int:
        """Memory held by appended bytes that are not in the file yet."""
        return len(self._buffer)

    @property
    def spooled_bytes(self) -> int:
        """Bytes of all frames in it, at most the limit."""
        return self._written + len(self._buffer) - self._head

    def append(
        self, messages: Sequence[StoredMessage], buffer_bytes: int = BUFFER_BYTES_MAX
    ) -> int:
        """Append as many of the first *messages* as there is room for.

        Args: buffer_bytes: to collect before they are written, this time, if that is fewer.

        Returns: how many were appended; fewer than all when the limit is reached or the file
            system refuses (full disk). Never raises.
        """
        if self._is_failed:
            return 0
        if not self.count and messages:
            self._position = messages[0].sequence - 1
        buffer = self._buffer
        buffer_bytes = min(buffer_bytes, self._buffer_bytes)
        room = self._limit_bytes - self.spooled_bytes
        appended = 0
        for message in messages:
            record = _encode(message.message)
            room -= _HEADER.size + len(record)
            if room < 0:
                break
            buffer += _HEADER.pack(len(record), message.sequence, message.delivery_count)
            buffer += record
            appended += 1
            if message.message.large is not None:
                self._large[message.sequence] = message.message.large
            if len(buffer) >= buffer_bytes and not self._flush():
                break
        if appended:
            self.count += appended
            self.last = messages[appended - 1].sequence
        return appended

    def _flush(self) -> bool:
        """Write the buffer to the file. On failure it stays in memory, where it can be read."""
        growth = min(self._written + len(self._buffer), self._limit_bytes) - self._file_bytes
        if growth > 0:
            if not self._space.take(growth):
                self._refuse("broker.temporary_space is used up")
                return False
            self._file_bytes += growth
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - lives as long as the spool
                    prefix="tidegate-spool-", dir=self._directory, buffering=0
                )
            descriptor = self._file.fileno()
            with memoryview(self._buffer) as view:
                done = 0
                while done < len(view):
                    place = (self._written + done) % self._limit_bytes
                    stop = done + min(len(view) - done, self._limit_bytes - place)
                    with view[done:stop] as part:  # released at once: the buffer must resize
                        done += os.pwrite(descriptor, part, place)
        except OSError as error:
            self._refuse(error)
            return False
        self._written += len(self._buffer)
        self._buffer.clear()
        return True

    def _refuse(self, error: object) -> None:
        self._is_failed = True
        _log.warning(
            "spool refused destination=%s directory=%s error=%s",
            self._destination,
            self._directory,
            error,
        )

    async def read(self, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Take the first messages out: at most *limit*, about *bytes_max* of frames, at least one.

        An empty list means that the spool is empty, or that its head moved during the read.

        Raises: StoreIOError (the file cannot be read; the spool is as before).
        Cancellation: safe, nothing is taken.
        """
        if self._head == self._written:
            return self._take_frames(memoryview(bytes(self._buffer)), limit, bytes_max)
        epoch = self._epoch
        try:
            data = await asyncio.to_thread(self._read_file, self._head, self._written)
        except StoreIOError:
            if epoch != self._epoch:
                return []
            raise
        if epoch != self._epoch:
            return []  # what was read has been dropped, and perhaps overwritten, meanwhile
        return self._take_frames(memoryview(data), limit, bytes_max)

    def read_now(self, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Same as :meth:`read`, on the event loop: for the oldest, which must make room at once."""
        if self._head == self._written:
            return self._take_frames(memoryview(bytes(self._buffer)), limit, bytes_max)
        data = self._read_file(self._head, self._written)
        return self._take_frames(memoryview(data), limit, bytes_max)

    def _read_file(self, head: int, written: int) -> bytes:
        """Read frames from *head* on; at least one whole frame. Runs in any thread."""
        try:
            data = self._read_bytes(head, min(READ_BYTES, written - head))
            size = _HEADER.size + _HEADER.unpack_from(data)[0]
            if size > written - head:
                raise OSError(f"a frame of {size} bytes cannot be where it was found")
            if size > len(data):
                data += self._read_bytes(head + len(data), size - len(data))
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            raise StoreIOError(f"{self._destination}: cannot read the spool: {error}") from error
        return data

    def _read_bytes(self, offset: int, size: int) -> bytes:
        file = self._file
        if file is None:
            raise OSError("the spool is closed")
        parts: list[bytes] = []
        while size:
            place = offset % self._limit_bytes
            part = os.pread(file.fileno(), min(size, self._limit_bytes - place), place)
            if not part:
                raise OSError("the file is shorter than what was written to it")
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _take_frames(self, data: memoryview, limit: int, bytes_max: int) -> list[StoredMessage]:
        """Decode the frames at the head, move the head behind them, leave out removed ones."""
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
        in_file = self._written - self._head
        self._head += size
        if size > in_file:  # frames that never left the buffer
            del self._buffer[: size - in_file]
            self._written = self._head
        if not self.count:
            self.clear()

    def claim(self, sequences: set[int]) -> set[int]:
        """Take messages out of order. Returns those that were here; see :meth:`remove`."""
        if not self.count:
            return set()
        found = {
            sequence for sequence in sequences if self._position < sequence <= self.last
        } - self._removed
        self.remove(found)
        return found

    def put_back(self, sequence: int) -> bool:
        """A claimed message comes back; False when its place has been read or given up."""
        if not self.count or sequence <= self._position or sequence not in self._removed:
            return False
        self._removed.discard(sequence)
        self.count += 1
        return True

    def remove(self, sequences: set[int]) -> int:
        """Messages left the list. Returns how many of them were in the spool.

        Every sequence between the head and the end is taken for one that is here: the caller
        removes only messages that were offered and not taken.
        """
        if not self.count:
            return 0
        removed = self._removed
        here = {
            sequence for sequence in sequences if self._position < sequence <= self.last
        } - removed
        known = min(len(here), self.count)
        removed |= here
        self.count -= known
        if not self.count:
            self.clear()
        return known

    def clear(self) -> None:
        """Forget everything and give the disk space back."""
        self._epoch += 1
        self._head = self._written = 0
        self._buffer.clear()
        self._removed.clear()
        self._large.clear()
        self._position = self.last
        self._is_failed = False
        self.count = 0
        if self._file is not None:
            try:
                self._file.truncate(0)
            except OSError as error:
                _log.warning(
                    "spool not truncated destination=%s error=%s", self._destination, error
                )
                return
        self._space.give_back(self._file_bytes)
        self._file_bytes = 0

    def close(self) -> None:
        """Free memory and file. Idempotent."""
        self.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
        self._space.give_back(self._file_bytes)
        self._file_bytes = 0
