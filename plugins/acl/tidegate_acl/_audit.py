"""The audit log: JSON lines in a file of its own, which cannot fill the disk.

A line is an object with ``time`` (UTC, ISO 8601), ``event`` and what is known of who and what. Two
things bound it: so many lines a second, past which events are only counted (the next line says how
many), and so many bytes, past which the file is renamed to ``FILE.1`` and the oldest one goes.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidegate.spi.private_files import make_private_directory, warn_of_others

_log = logging.getLogger("tidegate.acl")

#: Longer texts (names, client ids) are cut: a line has 2 KB at most.
TEXT_LENGTH_MAX: Final = 256

#: Of the file: only the gateway's own user reads who does what.
_MODE: Final = 0o600


class AuditLog:
    """See the module. Everything here is a short write to a local file, made at once.

    Args:
        path: made when it is missing, with mode 0600.
        size_bytes_max: of one file; files_max: of older ones that are kept.
        rate_max: lines a second.
        clock: seconds, only ever forwards; now: seconds since the epoch.
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
        self._rate_max = rate_max
        self._clock = clock
        self._now = now
        self._descriptor = -1
        self._left = float(rate_max)
        self._filled_at = clock()
        self._suppressed = 0
        self._is_failing = False

    def open(self) -> None:
        """Make the file and its directory where they are missing, for this user alone.

        Raises: OSError.
        """
        make_private_directory(self._path.parent)
        self._open()
        warn_of_others(self._path, "audit log")

    def write(self, event: str, fields: Mapping[str, str]) -> None:
        """Add a line; fields that are empty are left out. Never raises."""
        if not self._may_write():
            self._suppressed += 1
            return
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds"),
            "event": event,
        }
        line |= {key: text[:TEXT_LENGTH_MAX] for key, text in fields.items() if text}
        if self._suppressed:
            line["suppressed_before"] = self._suppressed
        # ASCII only, so that nothing in a name can look like the end of a line.
        data = json.dumps(line).encode() + b"\n"
        try:
            self._open()
            os.write(self._descriptor, data)
            self._suppressed = 0
            self._is_failing = False
        except OSError as error:
            self._suppressed += 1
            if not self._is_failing:  # once, not for every event
                self._is_failing = True
                _log.error("audit_log=%s cannot be written: %s", self._path, error.strerror)
            self.close()

    def _may_write(self) -> bool:
        now = self._clock()
        refill = (now - self._filled_at) * self._rate_max
        self._left = min(float(self._rate_max), self._left + refill)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _open(self) -> None:
        """Make sure that the file is open, is the one of that name, and has room."""
        if self._descriptor >= 0:
            mine = os.fstat(self._descriptor)
            try:
                there = self._path.stat()
            except FileNotFoundError:
                there = None
            if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
                self.close()  # somebody else rotates it
            elif mine.st_size < self._size_bytes_max:
                return
            else:
                self.close()
                self._rotate()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, _MODE)

    def _rotate(self) -> None:
        older = [
            self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files_max + 1)
        ]
        for source, target in zip([self._path, *older][-2::-1], older[::-1], strict=False):
            if source.exists():
                source.replace(target)
        if not older:
            self._path.unlink()

    def close(self) -> None:
        """Idempotent; the next line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
