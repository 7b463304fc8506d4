"""Temporary files of a Spark beside the gateway: removed with its process, or by the next one.

A process that ends removes its directory. One killed by SIGKILL cannot, and Spark's files may be
gigabytes. So each directory has a lock that ends with its process, and a process that makes a directory
removes those of dead processes.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

#: Prefix of directories that have an owner, or had one.
PREFIX: Final = "tidegate-spark-"
#: The prefix before it has a lock: nobody may take it for an abandoned one.
_UNOWNED: Final = ".tidegate-spark-"
_LOCK: Final = "lock"


def make_scratch_directory() -> Path:
    """Make a directory for this user alone; it lives as long as this process. Raises: OSError."""
    remove_abandoned(Path(tempfile.gettempdir()))
    unowned = Path(tempfile.mkdtemp(prefix=_UNOWNED))
    # Not inherited, so Java does not keep it. Never closed: the lock ends with the process.
    lock = os.open(unowned / _LOCK, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    directory = unowned.with_name(PREFIX + unowned.name.removeprefix(_UNOWNED))
    os.rename(unowned, directory)
    atexit.register(_remove_own, directory, os.getpid())
    return directory


def remove_abandoned(parent: Path) -> None:
    """Remove what dead processes of this user left in *parent*. Never raises OSError."""
    for directory in parent.glob(f"{PREFIX}*"):
        try:
            if _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)
                log.info("removed %s: its process has died", directory)
        except OSError as exc:
            log.debug("left %s: %s", directory, exc)  # another process is removing it


def _is_abandoned(directory: Path) -> bool:
    """Tell whether it is ours and nobody holds its lock. Raises: OSError."""
    status = directory.lstat()  # does not follow links
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True  # half removed: it had its lock before it had its name
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _remove_own(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(directory, ignore_errors=True)
