"""A lock file in a directory that several machines may share: one owner at a time, and a fence.

The kernel's lock (``flock``) says who may write, and dies with its process. What it cannot say is in
the file. Its text names the owner; its time stamp goes on, by a second each time, while the owner lives:

1. A file system on a network gives the lock of a machine that it does not hear to another one. Who
   gets a lock whose owner is not known to be gone waits until the stamp has stood still for as long as
   that owner asked for (the *lease*). No clock of another machine counts.
2. It writes its own text before it reads anything else.
3. So an owner that finds its own text *after* a sync knows that whoever comes next will read what was
   synced (:meth:`LockFile.check`). One that was away and finds another text must not confirm anything.
   That holds whatever clocks do; even those of a virtual machine, which stand still when it is paused.
4. Who was away for longer than its lease gives up, whether somebody came or not.
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
#: Who waits for the end of a lease looks so often, in seconds.
_LOOK_SECONDS: Final = 0.1
#: Clocks of two machines do not run equally fast; by far not so differently.
_DRIFT: Final = 1.01

T = TypeVar("T")


def _plainly(call: Callable[[], T]) -> T:
    return call()


class LockFile:
    """See the module. Methods may be called from any thread, and block.

    Args:
        lease_seconds: how long the next owner waits for this one when it cannot tell that it is gone;
            0: not at all, the kernel's lock is all there is.
        opened: opens a file although there is no descriptor left.

    Attributes:
        has_followed_unseen: nobody knows whether the last owner is gone: it may wake up, and write into
            the files that it had open.
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
        """Own it, now or when the lease of the last owner has ended.

        Args: owner: for people; ``gateway=NAME`` for example.
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
        """Text and stamp, and since when they are what they are."""
        seen = os.pread(fd, _TEXT_BYTES_MAX, 0), os.fstat(fd).st_mtime
        if seen != self._seen:
            self._seen, self._seen_since = seen, now()
        return seen

    def _is_last_gone(self, fd: int) -> bool:
        """Returns: True at once when it is; False when its lease has ended.

        Raises: StoreLockedError when it lives, although this one has the lock.
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
            # Without a lease the text only helps a person; on a full disk the lock itself is what counts.
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
        # Who waits has seen it only if it was in time.
        self._check_time()
        self._sure_until = before + self._lease

    def check(self) -> None:
        """Return when this is still the owner: what was synced before, the next one will read.

        Raises: StoreLockedError; OSError when that cannot be told.
        """
        self._check_time()
        try:
            text = self._read()
        except FileNotFoundError:
            self._give_up("the lock file was removed")
        if text != self._text:
            self._give_up(f"another gateway has taken it: {text.decode('utf-8', 'replace')!r}")

    def _read(self) -> bytes:
        """Opened anew: a file system on a network looks only then whether another machine wrote."""
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
        """Give it back: nothing is written any more, so the next owner need not wait. Idempotent."""
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
    """Of the owner that *text* is of: its lease in seconds, 0 when it has none; its name."""
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
