"""The audit log: JSON lines in a file of its own, which cannot fill the disk.

A line is an object with ``time`` (UTC, ISO 8601), ``event`` and what is known of who and what.
Lines per second are limited, and each source gets a tenth of them, so that one flood does not push
out what others did; events past the limit are only counted, and the next line says how many. The
size is limited too: past it the file is renamed to ``FILE.1``, and the oldest one is removed.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.spi.private_files import make_private_directory, warn_of_others

_log = logging.getLogger("tidegate.acl")

#: Longer texts (names, client ids) are cut, so a line has at most 2 KB.
TEXT_LENGTH_MAX: Final = 256

#: The file's mode: only the gateway's own user may read it.
_MODE: Final = 0o600

#: Each source gets one part in this many: ten can flood, and the eleventh is still heard.
_SHARE: Final = 10

#: Recent sources that are tracked separately.
_SOURCES_MAX: Final = 10_000

#: Follow no symbolic link, and do not block on a pipe without a reader.
_FLAGS: Final = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
)


class _Rate:
    """A token bucket that holds one second's worth."""

    __slots__ = ("_filled_at", "_left", "_max")

    def __init__(self, count: int, now: float) -> None:
        self._max = self._left = float(count)
        self._filled_at = now

    def refill(self, now: float) -> bool:
        """Refill up to *now*. Returns: whether there is one left."""
        self._left = min(self._max, self._left + (now - self._filled_at) * self._max)
        self._filled_at = now
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class AuditLog:
    """See the module. Each event is a short, immediate write to a local file.

    Args:
        path: created if missing, with mode 0600.
        size_bytes_max: of one file; files_max: of older ones that are kept.
        rate_max: lines a second.
        clock: monotonic seconds; now: seconds since the epoch.
    """

    def __init__(
        self,
        path: Path,
        *,
        size_bytes_max: int,
        files_max: int,
        rate_max: int,
        clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._path = path
        self._size_bytes_max = size_bytes_max
        self._files_max = files_max
        self._share_max = max(1, rate_max // _SHARE)
        self._clock = clock
        self._now = now
        self._descriptor = -1
        self._rate = _Rate(rate_max, clock())
        self._sources: OrderedDict[str, _Rate] = OrderedDict()
        self._suppressed = 0
        self._is_failing = False
        self._is_torn = False  # the file ends in the middle of a line

    def open(self) -> None:
        """Create the file and its directory if missing, for this user alone.

        Raises: OSError.
        """
        make_private_directory(self._path.parent)
        self._open()
        warn_of_others(self._path, "audit log")

    def write(self, event: str, fields: Mapping[str, str], source: str = "") -> None:
        """Add a line; empty fields are left out. Never raises.

        Args: source: who caused it; "": the gateway itself, which is not limited.
        """
        if source and not self._may_write(source):
            self._suppressed += 1
            return
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "event": event,
        }
        line |= {key: text[:TEXT_LENGTH_MAX] for key, text in fields.items() if text}
        if self._suppressed:
            line["suppressed_before"] = self._suppressed
        try:
            self._add(line)
        except OSError as error:
            self._suppressed += 1
            if not self._is_failing:  # once, not for every event
                self._is_failing = True
                _log.error("audit_log=%s cannot be written: %s", self._path, error.strerror)
            self._close()
            return
        self._suppressed = 0
        if self._is_failing:
            self._is_failing = False
            _log.warning("audit_log=%s is being written again", self._path)

    def _add(self, line: Mapping[str, object]) -> None:
        """Raises: OSError."""
        self._open()
        # ASCII only, so that nothing in a name can look like a line end. DEL is ASCII too.
        data = json.dumps(line).replace("\x7f", "\\u007f").encode() + b"\n"
        if self._is_torn:
            data = b"\n" + data
        written = os.write(self._descriptor, data)
        self._is_torn = written < len(data)
        if self._is_torn:
            raise OSError(0, "the disk is full")

    def _may_write(self, source: str) -> bool:
        now = self._clock()
        rate = self._sources.get(source)
        if rate is None:
            rate = self._sources[source] = _Rate(self._share_max, now)
            if len(self._sources) > _SOURCES_MAX:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(source)
        if not (rate.refill(now) and self._rate.refill(now)):
            return False
        rate.take()
        self._rate.take()
        return True

    def _open(self) -> None:
        """Ensure that the open file is the one at *path*, and has room. Raises: OSError."""
        if self._descriptor >= 0:
            mine = os.fstat(self._descriptor)
            try:
                there = self._path.stat()
            except FileNotFoundError:
                there = None
            if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
                self._close()  # somebody else rotates it
            elif mine.st_size < self._size_bytes_max:
                return
            else:
                self._close()
                self._rotate()
        self._descriptor = os.open(self._path, _FLAGS, _MODE)

    def _rotate(self) -> None:
        older = [
            self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files_max + 1)
        ]
        for source, target in zip([self._path, *older][-2::-1], older[::-1], strict=False):
            if source.exists():
                source.replace(target)
        if not older:
            self._path.unlink()

    def reopen(self) -> None:
        """Reopen the file by its name. Raises: OSError; the next line tries again."""
        self._close()
        self.open()

    def close(self) -> None:
        """Report dropped events, and close. Idempotent; the next line opens it again."""
        if self._suppressed:
            self.write("suppressed", {})
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
