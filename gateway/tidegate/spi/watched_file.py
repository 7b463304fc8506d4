"""A file that others change while the gateway runs: users, keys, rules.

For extensions that read one. It is looked at from time to time, and whenever somebody asks; what is
wrong with it is told once, and what was read before stays: a half-written file must not lock
everybody out, nor let anybody in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar, final

from tidegate.spi.errors import ConfigError

T = TypeVar("T")

#: What tells one state of a file from another; None: it is not there.
Stamp: TypeAlias = tuple[int, int, int, int]

_log = logging.getLogger("tidegate.files")

#: No file has it: the next look reads.
_UNREAD: Final[Stamp] = (-1, -1, -1, -1)


@final
class WatchedFile(Generic[T]):
    """See the module. One event loop.

    Args:
        path: of the file.
        read: makes of it what is wanted, in a thread; raises ConfigError when it is wrong.
        accept: takes what was read anew, on the loop.
        refuse: is told what is wrong, on the loop, once.

    The first read is the caller's: make this before it, and no change in between is missed.
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
        """Look at the file every *interval_s* seconds until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
            except Exception:  # or no change would be noticed any more
                stamp = self._stamp_now()
                if stamp != self._failed:  # once: it is tried again each time
                    self._failed = stamp
                    _log.exception("cannot check %s for changes; will try again", self._path)

    async def refresh(self) -> None:
        """Read the file if it has changed. Cancellation: the next call reads it.

        Raises: what *read*, *accept* and *refuse* raise, ConfigError of *read* apart.
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

        Raises: ConfigError in place of calling *refuse*; what was read before stays. Otherwise, and
        cancellation: as :meth:`refresh`.
        """
        async with self._reading:
            await self._take(self._stamp_now())

    async def _take(self, stamp: Stamp | None) -> None:
        """Raises: ConfigError; it is not read again before it changes."""
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
        # Nobody sets the time of the last change of an inode, as `cp -p` does that of the file; it
        # changes with the mode, too.
        return status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode
