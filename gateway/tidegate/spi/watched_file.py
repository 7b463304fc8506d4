"""A file that others change while the gateway runs: users, keys, rules.

For extensions that read one. It is checked from time to time, and on request. A fault in it is reported
once, and the previous contents stay in force: a half-written file must not lock everybody out, nor let
anybody in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar, final

from tidegate.spi.errors import ConfigError

T = TypeVar("T")

#: Distinguishes one state of a file from another; None: it does not exist.
Stamp: TypeAlias = tuple[int, int, int, int]

_log = logging.getLogger("tidegate.files")

#: Matches no file: the next check reads it.
_UNREAD: Final[Stamp] = (-1, -1, -1, -1)


@final
class WatchedFile(Generic[T]):
    """See the module. One event loop.

    Args:
        path: of the file.
        read: parses the file, in a thread; raises ConfigError when it is faulty.
        accept: takes the newly parsed contents, on the loop.
        refuse: is told what is wrong, on the loop, once.

        The caller does the first read: create this object before it, and no change in between is missed.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[], T],
        accept: Callable[[T], None],
        refuse: Callable[[ConfigError], None],
    ) -> None:
        self._path = path
        self._read = read
        self._accept = accept
        self._refuse = refuse
        self._reading = asyncio.Lock()
        self._stamp: Stamp | None = self._stamp_now()
        self._failed: Stamp | None = _UNREAD

    async def watch(self, interval_s: float) -> None:
        """Check the file every *interval_s* seconds until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
            except Exception:  # or no later change would be noticed
                stamp = self._stamp_now()
                if stamp != self._failed:  # report once; it is retried each time
                    self._failed = stamp
                    _log.exception("cannot check %s for changes; will try again", self._path)

    async def refresh(self) -> None:
        """Read the file if it has changed. Cancellation: the next call reads it.

        Raises: what *read*, *accept* and *refuse* raise, except ConfigError from *read*.
        """
        if self._stamp_now() == self._stamp:
            return
        async with self._reading:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            try:
                await self._take(stamp)
            except ConfigError as error:
                self._refuse(error)

    async def reload(self) -> None:
        """Read the file whether it has changed or not, for :class:`~tidegate.spi.Reloadable`.

        Raises: ConfigError, instead of calling *refuse*; the previous contents stay. Otherwise, and
        cancellation: as :meth:`refresh`.
        """
        async with self._reading:
            await self._take(self._stamp_now())

    async def _take(self, stamp: Stamp | None) -> None:
        """Raises: ConfigError; the file is not read again before it changes."""
        try:
            made = await asyncio.to_thread(self._read)
        except ConfigError:
            self._stamp = stamp
            raise
        self._stamp = stamp
        self._accept(made)

    def _stamp_now(self) -> Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        # Unlike a file's mtime, which `cp -p` sets, nobody can set an inode's ctime; it also changes
        # with the mode.
        return status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode
