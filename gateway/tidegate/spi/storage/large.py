"""Large bodies: bytes that stream to and from a place of their own and are never whole in memory.

A store that can keep them says so (:attr:`~tidegate.spi.StoreCapabilities.large_bodies`). A
front-end writes a body of at least :attr:`LargeBodies.size_min` bytes, whether it knows the size
in advance or not, through :meth:`LargeBodies.create`. It then publishes a
:class:`~tidegate.spi.Message` with an empty ``body`` and the handle in ``large``. To deliver such
a message, read the body through :meth:`LargeBodies.open`.

**How long the bytes live.** As long as a stored message refers to them (in a pending list or in the
acknowledged log), and as long as the handle that :meth:`LargeWriter.finish` returned, or one that
came from the store, is alive in memory. Nobody has to release anything: a dropped message, a
rolled-back transaction and a client that goes away take their bytes with them. A handle copied or
decoded by anybody but the store does not count: if you write a message with a handle to a place of
your own, keep the handle as well.

All methods are called on the event loop; what blocks happens in the store's threads.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class LargeBody(msgspec.Struct, frozen=True, array_like=True, weakref=True):
    """Handle of a body that is stored in a place of its own.

    Attributes:
        id: the store's name for it, never reused.
        size: bytes of the body, 1 or more.
        checksum: CRC-32C of the body, which reading verifies.
    """

    id: str
    size: int
    checksum: int = 0


class LargeWriter(Protocol):
    """One body on its way to the disk. One call at a time."""

    async def write(self, *pieces: bytes) -> None:
        """Append *pieces*; returns when the store has taken them, which is the back-pressure.

        Raises: StoreFullError, also when a body of unknown size would leave too little room;
            LargeBodyError when this body cannot be written but others may be; StoreClosedError.
            What was written is removed then.
        Cancellation: as an error.
        """
        ...

    async def finish(self, *pieces: bytes) -> LargeBody:
        """Append *pieces* and make the body durable, as the store's configuration promises.

        Called once, last; the body must have 1 byte or more. Raises and cancellation: as :meth:`write`.
        """
        ...

    def abandon(self) -> None:
        """Forget it and remove what was written, soon. Idempotent; does nothing after ``finish``."""
        ...


class LargeReader(Protocol):
    """Reads one body from its beginning. One call at a time."""

    async def read(self, limit: int) -> bytes:
        """The next bytes: at least one, at most *limit* (1 or more); b"" at the end.

        Raises: CorruptRecordError when bytes are missing, or, in place of returning the last bytes,
            when the checksum does not match; LargeBodyError, StoreClosedError.
        Cancellation: safe, but the reader must be closed then.
        """
        ...

    def close(self) -> None:
        """Release it. Idempotent."""
        ...


class LargeBodies(Protocol):
    """What a store that keeps large bodies offers."""

    @property
    def size_min(self) -> int:
        """Bodies of at least this many bytes are large, 1 or more; shorter ones are ordinary."""
        ...

    def create(self, size: int | None) -> LargeWriter:
        """Begin to write a body of *size* bytes. Nothing happens before the first ``write``.

        Args: size: 1 or more; None: unknown, the body ends with ``finish``.
        """
        ...

    def open(self, body: LargeBody) -> LargeReader:
        """Begin to read. Nothing happens before the first ``read``; the bytes stay until closed."""
        ...
