"""Exchanges two directories in one step: readers and crashes see the state before or after.

``renameat2`` with ``RENAME_EXCHANGE``, Linux 3.15: ext4, xfs, btrfs, tmpfs and others have it; NFS and FAT do not.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NOT_THERE: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV)


class NoExchangeError(OSError):
    """The system or the file system cannot do it."""


def exchange(one: Path, other: Path) -> None:
    """Give each the other's name. Raises: NoExchangeError, OSError; nothing has changed then."""
    rename: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    code = errno.ENOSYS
    if rename is not None:
        names = os.fsencode(one), os.fsencode(other)
        if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
    if code in _NOT_THERE:
        raise NoExchangeError(
            code,
            f"the file system of {one} cannot exchange two directories, without which a Parquet table cannot be "
            "compacted under its readers; put it on ext4, xfs or btrfs, or set compact_interval = 0",
        )
    raise OSError(code, os.strerror(code), str(one), None, str(other))
