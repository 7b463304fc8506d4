"""Starts and reads ``store_child.py``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from tidegate_store_jdbc import JdbcOptions

#: Longest wait for a line, in seconds.
LINE_SECONDS = 60.0


def _is_stopped(thread: Path) -> bool:
    try:
        return ") T " in (thread / "stat").read_text()
    except OSError:  # it has ended
        return True


def _is_free(database: Path) -> bool:
    """Nobody holds a lock on a database of SQLite for long."""
    with contextlib.closing(sqlite3.connect(database, timeout=0.5)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
    return True


class Child:
    """One process with a store. A context manager that leaves no process behind.

    Attributes: confirmed: sequences it was told are durable; opened_at: its last sequence then.
    """

    def __init__(self, directory: Path, tag: str, mode: str, options: JdbcOptions) -> None:
        script = Path(__file__).with_name("store_child.py")
        text = json.dumps(dataclasses.asdict(options))
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(directory), tag, mode, text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.confirmed: list[int] = []
        self.opened_at = -1
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LINE_SECONDS)
        self._thread.join(LINE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("end")

    def freeze(self, database: Path | None = None) -> None:
        """SIGSTOP. With *database*, one of SQLite, never in a transaction: nobody would get in."""
        threads = Path(f"/proc/{self.process.pid}/task")
        end = time.monotonic() + LINE_SECONDS
        while time.monotonic() < end:
            self.signal(signal.SIGSTOP)
            while not all(_is_stopped(one) for one in threads.iterdir()):
                time.sleep(0.001)
            if database is None or _is_free(database):
                return
            self.signal(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("somebody is always in a transaction")

    def until(self, word: str) -> str:
        """Read lines up to one that begins with *word*. Raises: AssertionError when none comes."""
        end = time.monotonic() + LINE_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {word!r} in {LINE_SECONDS} s") from None
            kind, _, rest = line.partition(" ")
            if kind == "ok":
                self.confirmed.append(int(rest))
            elif kind == "open":
                self.opened_at = int(rest)
            if kind == word:
                return line
            assert kind not in ("end", "failed"), f"{line!r} instead of {word!r}"

    def until_confirmed(self, count: int) -> None:
        """Read until *count* more messages were confirmed."""
        for _ in range(count):
            self.until("ok")

    def step(self) -> None:
        """Let it write one message."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and read what it had said."""
        self.process.kill()
        self.process.wait(LINE_SECONDS)
        self.until("end")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)
