"""How far a store's recovery is: a bar where a person looks, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:  # importing rich takes a tenth of a second, and most starts show no bar
    from rich.progress import Progress, TaskID

_log = logging.getLogger("tidegate.recovery")

#: A shorter start reports nothing: nobody waits for it.
QUIET_SECONDS: Final = 0.5
#: Between log lines.
LOG_SECONDS: Final = 5.0


class RecoveryProgress:
    """Call it with (what, done, total) as often as you like; *done* and *total* in any unit.

    On a terminal a bar for each *what*; elsewhere one log line every LOG_SECONDS. Nothing at all in
    the first QUIET_SECONDS. Not thread-safe.
    """

    def __init__(
        self, stream: TextIO | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """*stream*: where a bar may be shown; stderr unless given."""
        shown: TextIO = sys.stderr if stream is None else stream
        self._now = now
        self._terminal = shown if shown.isatty() else None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._begin: float | None = None
        self._logged_at = 0.0
        self._is_closed = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._now()
        if self._begin is None:
            self._begin = now
            self._logged_at = now + QUIET_SECONDS - LOG_SECONDS
        if self._is_closed or now < self._begin + QUIET_SECONDS:
            return
        if self._terminal is not None:
            self._show(what, done, total, self._terminal)
        elif now >= self._logged_at + LOG_SECONDS:
            self._logged_at = now
            share = f"{100 * done // total}%" if total else "unknown"
            _log.info("%s: %s done, %d s so far", what, share, now - self._begin)

    def _show(self, what: str, done: int, total: int, terminal: TextIO) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeRemainingColumn(),
                console=Console(file=terminal),
                transient=True,
                # The bar moves when it is updated; a refresh thread of its own could print anywhere.
                auto_refresh=False,
            )
            self._bar.start()
        if what != self._what or self._task is None:
            self._what = what
            self._task = self._bar.add_task(what, total=total or None)
        self._bar.update(self._task, completed=done, total=total or None, refresh=True)

    def stands_by(self) -> None:
        """Another gateway has the store: that is no progress. What comes after it begins anew."""
        self._begin = self._task = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def close(self) -> None:
        """The recovery is over, well or not: take the bar away. Idempotent."""
        self._is_closed = True
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
