"""What the gateway writes is private to its user: directories 0700, files 0600, whatever the umask.

There are two safeguards. Code that makes a directory or a file sets its mode with these functions; and the
command closes the umask, for what libraries make (the WAL of SQLite, Parquet files). Neither narrows the mode
of what exists already: another program of the operator's may be meant to read it, so that is only a warning
that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.spi.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

_log = logging.getLogger("tidegate.files")

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
UMASK: Final = 0o077
_OTHERS: Final = 0o077
#: For files that are no secret, but that others must not change.
WRITABLE: Final = 0o022


def make_private_directory(path: Path) -> None:
    """Make *path*, and its missing parents, for this user alone.

    An existing directory keeps its mode; :func:`warn_of_others` reports what is wrong with it. Raises: OSError.
    """
    if not path.parent.is_dir():
        make_private_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """For ``open(…, opener=…)``: a new file is private to this user."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file; anything else could block for ever (a FIFO) or do anything (a device).

    Raises: OSError.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def warn_of_others(path: Path, what: str, *, among: int = _OTHERS) -> bool:
    """Log a warning when others can reach and use *path*, a directory or a file. Raises: OSError.

    Args: what: what to call it in the warning (``data directory``); among: the permission bits that count.
    Returns: True when a warning was logged.
    """
    problem = problem_of_others(path, among=among)
    if problem:
        _log.warning("%s %s: %s", what, path, problem)
    return bool(problem)


def problem_of_others(path: Path, *, among: int = _OTHERS) -> str:
    """What others may do with *path*, and the command that prevents it; "" when they may do nothing.

    Args: among: the permission bits of group and others that count.
    """
    kind = path.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        return ""  # a pipe of the shell's, or /dev/null
    path, mode = path.resolve(), stat.S_IMODE(kind)
    wide = mode & among & _within_reach(path)
    if not wide:
        return ""
    may = [
        word for bits, word in ((0o044, "read"), (0o022, "change"), (0o011, "enter")) if wide & bits
    ]
    if not path.is_dir():
        may = [word for word in may if word != "enter"]
    if not may:
        return ""
    who = "everybody" if wide & 0o007 else "its group"
    recursive = "-R " if path.is_dir() else ""
    taken = "rwx" if among & 0o044 else "w"
    return (
        f"{who} on this machine can {' and '.join(may)} it (mode {mode:04o});"
        f" run: chmod {recursive}go-{taken} {path}"
    )


def read_text(
    path: Path, *, key: str, bytes_max: int, others: int = 0, danger: str = "", missing: str = ""
) -> str:
    """Read a small text file: users, keys, rules. Blocks, but never for long.

    Args:
        key: of the configuration, for the error.
        bytes_max: a larger file is a mistake, and is not read.
        others: permission bits that the file must not have, wherever it is; danger: what those who have
            them could do, completing "… by others, who could then".
        missing: what to do when the file does not exist.
    Raises: ConfigError that says what is wrong and what to do.
    """
    try:
        # Checked once open, so that nobody can swap the file between the check and the reading.
        with open(path, "rb", opener=_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is not a regular file", key=key)
            if status.st_mode & others:
                raise ConfigError(_others_may(path, status.st_mode, others, danger), key=key)
            data = file.read(bytes_max + 1)
    except IsADirectoryError:
        raise ConfigError(f"{path} is not a regular file", key=key) from None
    except FileNotFoundError as error:
        raise ConfigError(_unreadable(path, error, missing), key=key) from None
    except PermissionError as error:
        owner = "make the gateway's user its owner (chown)"
        raise ConfigError(_unreadable(path, error, owner), key=key) from None
    except OSError as error:
        raise ConfigError(_unreadable(path, error, ""), key=key) from None
    if len(data) > bytes_max:
        raise ConfigError(f"{path} is larger than {bytes_max} bytes", key=key)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", key=key) from None


def _at_once(path: str, flags: int) -> int:
    """For ``open(…, opener=…)``: does not block, as opening a pipe would until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _unreadable(path: Path, error: OSError, advice: str) -> str:
    return f"{path} cannot be read: {error.strerror}" + (f"; {advice}" if advice else "")


def _others_may(path: Path, mode: int, others: int, danger: str) -> str:
    reads = bool(others & stat.S_IROTH)
    return (
        f"{path} can be {'read or ' if reads else ''}written by others (mode "
        f"{stat.S_IMODE(mode):04o}), who could then {danger}; run: chmod "
        f"{'600' if reads else 'go-w'} {path}"
    )


def _within_reach(path: Path) -> int:
    """The permission bits of group and others that take effect: whoever may not enter a directory above cannot
    get here. Each directory may have another group, so group bits are ruled out only where nobody else may enter."""
    reach = _OTHERS
    for above in path.parents:
        mode = above.stat().st_mode
        if not mode & 0o001:
            reach &= ~0o007
        if not mode & 0o011:
            reach = 0
    return reach


_inherited: list[int] = []


@contextlib.contextmanager
def closed_umask() -> Generator[None]:
    """Make everything this process creates inside private to its user. For the command, not for a library."""
    _inherited.append(os.umask(UMASK))
    try:
        yield
    finally:
        os.umask(_inherited.pop())


def inherited_umask() -> int | None:
    """The umask this process was started with, for programs that write for others on purpose
    (a table of the lakehouse); None when :func:`closed_umask` is not in force."""
    return _inherited[0] if _inherited else None
