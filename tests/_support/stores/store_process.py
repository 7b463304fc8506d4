"""Starts and reads ``store_child.py``."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tidegate_store_jdbc import JdbcOptions

#: Longest wait for a line, in seconds.
LINE_SECONDS = 60.0


class Child:
    """One process with a store. A context manager that leaves no process behind.

    Attributes: confirmed: sequences it was told are durable; opened_at: its last sequence then.
    """

    def __init__(
        self, directory: Path, tag: str, mode: str, options: JdbcOptions | Mapping[str, object]
    ) -> None:
        """*options*: of an SQL store, or what is written of those of a journal."""
        self._file = directory / "tidegate.db"
        script = Path(__file__).with_name("store_child.py")
        text = json.dumps(options if isinstance(options, Mapping) else dataclasses.asdict(options))
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(directory), tag, mode, text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.confirmed: list[int] = []
        self.said: list[str] = []  # the first word of each line that was read
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

    def until(self, word: str) -> str:
        """Read lines up to one that begins with *word*. Raises: AssertionError when none comes."""
        end = time.monotonic() + LINE_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {word!r} in {LINE_SECONDS} s") from None
            kind = self._take(line)
            if kind == word:
                return line
            assert kind not in ("end", "failed"), f"{line!r} instead of {word!r}"

    def has_said(self, word: str) -> bool:
        """Read what there is, and tell whether *word* was in it; lines before it are taken."""
        while not self._lines.empty():
            if self._take(self._lines.get()) == word:
                return True
        return False

    def _take(self, line: str) -> str:
        kind, _, rest = line.partition(" ")
        self.said.append(kind)
        if kind == "ok":
            self.confirmed.append(int(rest))
        elif kind == "open":
            self.opened_at = int(rest)
        return kind

    def until_confirmed(self, count: int) -> None:
        """Read until *count* more messages were confirmed."""
        for _ in range(count):
            self.until("ok")

    def step(self, what: str = "") -> None:
        """Let it write one message, or do *what* the script says."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and read what it had said."""
        self.process.kill()
        self.process.wait(LINE_SECONDS)
        self.until("end")

    def stop(self) -> None:
        """SIGSTOP, at a moment when it does not hold SQLite's lock: nobody else could write then."""
        while True:
            self.signal(signal.SIGSTOP)
            os.waitpid(self.process.pid, os.WUNTRACED)
            if not self._file.exists() or self._is_free():
                return
            self.signal(signal.SIGCONT)
            time.sleep(0.01)

    def _is_free(self) -> bool:
        connection = sqlite3.connect(self._file, timeout=0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)
