"""A lock file in a directory that several machines may share: one owner at a time, and a fence.

The kernel's lock (``flock``) says who may write, and dies with its process. The file says what the lock
cannot. Its text names the owner; its time stamp advances by a second at each renewal while the owner lives:

1. A network file system may give a lock to another machine when it no longer hears from the holder's.
   So if the last owner is not known to be gone, whoever gets the lock waits until the stamp has stood
   still for as long as that owner asked for (the *lease*). No clock of another machine counts.
2. It writes its own text before it reads anything else.
3. So an owner that finds its own text *after* a sync knows that the next owner will read what was
   synced (:meth:`LockFile.check`). One that was away and finds another text must not confirm anything.
   That holds whatever clocks do, even those of a virtual machine, which stand still while it is paused.
4. An owner away for longer than its lease gives up, whether or not another one has taken over.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from tidegate.spi.errors import StoreLockedError
from tidegate.spi.machine.lease import now
from tidegate.spi.machine.owners import is_gone, make_owner
from tidegate.spi.private_files import open_regular

logger = logging.getLogger("tidegate.lock")

_TEXT_BYTES_MAX: Final = 4096
#: Poll interval while waiting for a lease to end, in seconds.
_LOOK_SECONDS: Final = 0.1
#: Clocks of two machines differ in speed, but by far less than this.
_DRIFT: Final = 1.01

T = TypeVar("T")


def _plainly(call: Callable[[], T]) -> T:
    return call()


class LockFile:
    """See the module. Methods may be called from any thread, and block.

    Args:
        lease_seconds: how long the next owner waits for this one when it cannot tell that it is gone;
            0: not at all, and the kernel's lock is all there is.
        opened: opens a file even when no descriptor is left.

    Attributes:
        has_followed_unseen: the last owner may not be gone: it may wake up and write into the files
            that it had open.
    """

    def __init__(
        self,
        path: Path,
        *,
        lease_seconds: float = 0.0,
        opened: Callable[[Callable[[], int]], int] = _plainly,
    ) -> None:
        self._path = path
        self._lease = lease_seconds
        self._opened = opened
        self._fd = -1
        self._text = b""
        self._stamp = 0
        self._sure_until = 0.0
        self._seen: tuple[bytes, float] | None = None  # text and stamp of the owner
        self._seen_since = 0.0
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._lost = ""
        self._telling = threading.Lock()
        self._on_lost: Callable[[str], None] = lambda _: None
        self.has_followed_unseen = False

    def take(self, owner: str) -> None:
        """Take ownership, now or when the last owner's lease has ended.

        Args: owner: for people; for example ``gateway=NAME``.
        Raises: StoreLockedError when somebody has it; OSError.
        """
        fd = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse(fd)
            self.has_followed_unseen = not self._is_last_gone(fd)
            self._sign(fd, owner)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _refuse(self, fd: int) -> NoReturn:
        text, _ = self._look(fd)
        holder = text.decode("utf-8", "replace").partition("\n")[0] or "unknown"
        raise StoreLockedError(
            f"{self._path.parent} is owned by another gateway ({holder}); stop that "
            "one, or choose another data directory",
            owner=holder,
        )

    def _look(self, fd: int) -> tuple[bytes, float]:
        """Text and stamp; notes since when they have been the same."""
        seen = os.pread(fd, _TEXT_BYTES_MAX, 0), os.fstat(fd).st_mtime
        if seen != self._seen:
            self._seen, self._seen_since = seen, now()
        return seen

    def _is_last_gone(self, fd: int) -> bool:
        """Returns: True at once when the last owner is gone; False when its lease has ended.

        Raises: StoreLockedError when it is alive, although this process has the lock.
        """
        seen = self._look(fd)
        lease, last = _signature(seen[0])
        if not lease:
            return True
        while not is_gone(last):
            if self._look(fd) != seen or not _is_at(fd, self._path):
                self._refuse(fd)
            left = self._seen_since + lease * _DRIFT - now()
            if left <= 0:
                logger.warning("lock=expired of=%s: that gateway may or may not be gone", last)
                return False
            time.sleep(min(left, _LOOK_SECONDS))
        return True

    def _sign(self, fd: int, owner: str) -> None:
        owner = owner.replace("\n", "_")
        text = f"{owner} pid={os.getpid()} host={socket.gethostname()}\n"
        if self._lease:
            text += f"lease={self._lease:g} of={make_owner(owner)}\n"
        self._text = text.encode()
        before = now()
        try:
            os.pwrite(fd, self._text, 0)
            os.ftruncate(fd, len(self._text))
            os.fsync(fd)
            self._stamp = int(os.fstat(fd).st_mtime) + 1
            os.utime(fd, (self._stamp, self._stamp))
        except OSError:
            # Without a lease the text only helps people; on a full disk the lock itself is what counts.
            if self._lease:
                raise
        self._lost, self._sure_until = "", before + self._lease

    # ------------------------------------------------------------------------------ as its owner

    def keep(self, renew_seconds: float, on_lost: Callable[[str], None]) -> None:
        """Renew the lease from now on. *on_lost*: called once, from any thread, with what happened."""
        self._on_lost = on_lost
        self._ended.clear()
        self._keeper = threading.Thread(
            target=self._keep, args=(renew_seconds,), name="tidegate-lock", daemon=True
        )
        self._keeper.start()

    def _keep(self, renew_seconds: float) -> None:
        while not self._ended.wait(renew_seconds):
            try:
                self._renew()
            except StoreLockedError:
                return
            except OSError as error:
                logger.warning("lock=not-renewed path=%s error=%s", self._path, error)

    def _renew(self) -> None:
        before = now()
        self.check()
        self._stamp += 1
        os.utime(self._fd, (self._stamp, self._stamp))
        # Whoever waits has seen the renewal only if it came in time.
        self._check_time()
        self._sure_until = before + self._lease

    def check(self) -> None:
        """Return if this is still the owner: the next owner will read what was synced before.

        Raises: StoreLockedError; OSError when it cannot be determined.
        """
        self._check_time()
        try:
            text = self._read()
        except FileNotFoundError:
            self._give_up("the lock file was removed")
        if text != self._text:
            self._give_up(f"another gateway has taken it: {text.decode('utf-8', 'replace')!r}")

    def _read(self) -> bytes:
        """Reopens the file: only then does a network file system check whether another machine wrote."""
        fd = self._opened(lambda: os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            return os.pread(fd, _TEXT_BYTES_MAX, 0)
        finally:
            os.close(fd)

    def _check_time(self) -> None:
        if self._lost:
            raise StoreLockedError(self._lost)
        late = now() - self._sure_until
        if late >= 0:
            self._give_up(
                "this gateway was suspended, or its disk did not answer, for "
                f"{late + self._lease:.1f} s, which is more than lock_expiration "
                f"({self._lease:g} s)"
            )

    def _give_up(self, problem: str) -> NoReturn:
        with self._telling:
            is_new, self._lost = (
                not self._lost,
                self._lost or f"lost the lock {self._path}: {problem}",
            )
        if is_new:
            self._on_lost(self._lost)
        raise StoreLockedError(self._lost)

    def release(self) -> None:
        """Give up ownership: nothing more is written, so the next owner need not wait. Idempotent."""
        if self._fd < 0:
            return
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join()
            self._keeper = None
        if self._lease:
            with suppress(OSError):
                if self._read() == self._text:
                    os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1


def _signature(text: bytes) -> tuple[float, str]:
    """The lease in seconds (0 without one) and the name of the owner that wrote *text*."""
    _, _, rest = text.decode("utf-8", "replace").partition("\n")
    lease, _, owner = rest.partition("\n")[0].removeprefix("lease=").partition(" of=")
    try:
        return float(lease or 0), owner
    except ValueError:
        return 0.0, owner


def _is_at(fd: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(path))
    return False
