"""Linux's io_uring as a :class:`Ring`, through the package *caio* (the extra ``asyncio``).

The kernel tells the end of a request by an eventfd, which the event loop watches. A synced write goes
to a second descriptor of the same file that was opened with O_DSYNC, so that it needs neither a
request of its own for the sync nor a link between two.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from asyncio import AbstractEventLoop
from functools import partial
from typing import TYPE_CHECKING, Final

from tidegate_store_journal.log.storage import DirectoryFile, File
from tidegate_store_journal.write.ringwriter import Completed
from tidegate_store_journal.write.writer import HAND_OVER_BYTES_MIN

if TYPE_CHECKING:
    from caio.linux_uring import Operation

logger = logging.getLogger("tidegate.store.journal")

#: The system had no memory for a request; it is offered again after this.
_AGAIN_SECONDS: Final = 0.005


class CaioRing:
    """See the module. Files are those of ``DirectoryStorage``. For the event loop."""

    def __init__(self, loop: AbstractEventLoop, entries: int) -> None:
        """*entries*: requests that may be under way.

        Raises: ImportError: the package is missing, or the system does not allow io_uring;
            OSError: no ring can be had.
        """
        from caio import linux_uring  # optional

        self._loop = loop
        self._operation = linux_uring.Operation
        try:
            self._context = linux_uring.Context(max_requests=entries)
        except (SystemError, RuntimeError) as error:
            raise OSError(str(error)) from error
        self._completed: list[tuple[Completed, int]] = []
        self._is_closed = False
        loop.add_reader(self._context.fileno, self._ready)

    def write(self, file: File, data: bytes, offset: int, done: Completed, *, synced: bool) -> None:
        """See Ring."""
        assert isinstance(file, DirectoryFile)
        try:
            fd = file.synced_fileno() if synced else file.fileno()
        except OSError as error:
            # No descriptor left. Nothing was written, so the journal is as good as before.
            self._loop.call_soon(done, -(error.errno or errno.EIO))
            return
        self._submit(self._operation.write(data, fd, offset), done)
        if len(data) > HAND_OVER_BYTES_MIN:
            # The loop will go on working, see _writer, and a thread of the kernel has to begin.
            # Where all processors are busy it would wait for the end of the loop's time slice:
            # milliseconds, for a call that otherwise costs less than one microsecond.
            os.sched_yield()

    def datasync(self, file: File, done: Completed) -> None:
        """See Ring."""
        assert isinstance(file, DirectoryFile)
        self._submit(self._operation.fdsync(file.fileno()), done)

    def close(self) -> None:
        """See Ring."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._context.fileno)

    def _submit(self, operation: Operation, done: Completed) -> None:
        operation.set_callback(partial(self._note, done))
        self._context.submit(operation)  # pyright: ignore[reportUnknownMemberType]
        self._flush()

    def _flush(self) -> None:
        try:
            self._context.flush()
        except SystemError as error:
            logger.warning("the system takes no request now; trying again error=%s", error)
            self._loop.call_later(_AGAIN_SECONDS, self._flush)
        if self._completed:  # carried out at once
            self._loop.call_soon(self._deliver)

    def _note(self, done: Completed, result: int) -> None:
        self._completed.append((done, result))

    def _ready(self) -> None:
        try:
            self._context.poll()
        except BlockingIOError:
            pass  # the event was for a request that was seen before
        while self._context.process_events():
            pass
        self._deliver()

    def _deliver(self) -> None:
        completed, self._completed = self._completed, []
        for done, result in completed:
            done(result)


def open_ring(loop: AbstractEventLoop, entries: int) -> CaioRing:
    """A ring, when this system has one. Raises: ImportError, OSError; both say why not."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
        raise OSError(errno.ENOSYS, "io_uring needs Linux with /proc")
    return CaioRing(loop, entries)
