"""The job as a child process: start, commands in, reports out, certain death."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidegate.spi.machine.children import follow_lines, kill_group, start_child
from tidegate_sink_spark._protocol import (
    Command,
    JobConfig,
    Report,
    decode_report,
    encode_line,
)

log = logging.getLogger(__name__)

#: ``-P``: a file named ``json.py`` in the working directory must not replace Python's.
JOB_COMMAND: Final = (sys.executable, "-P", "-m", "tidegate_sink_spark.job.run")
TAIL_LINES: Final = 20
_PIPE_TIMEOUT: Final = 5.0


class JobProcess:
    """A running job and its Java machine. Made by :meth:`start`; used on one event loop."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._stderr = asyncio.create_task(follow_lines(process.stderr, self._take_line))
        self._beside: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: JobConfig,
        *,
        environment: Mapping[str, str],
        work_directory: Path,
        command: Sequence[str] = JOB_COMMAND,
        niceness: int = 0,
    ) -> JobProcess:
        """Start the job in its own session, where no Ctrl-C reaches it. Raises: OSError."""
        process = await start_child(
            command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            environment=environment,
            directory=work_directory,
            niceness=niceness,
        )
        job = cls(process)
        job._write(encode_line(config))
        return job

    @property
    def pid(self) -> int:
        """The Python process's, which is also the process group's."""
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last lines it wrote to stderr."""
        return "\n".join(self._tail)

    def send(self, command: Command) -> None:
        """Send *command*; does nothing when the job is gone."""
        self._write(encode_line(command))

    def _write(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "the job is started with a pipe"
        if not stdin.is_closing():
            stdin.write(line)

    def accompany(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside the job, once a job; :meth:`end` cancels it."""
        self._beside = asyncio.create_task(work)

    async def next_report(self) -> Report | None:
        """Its next report; None when it has ended. Any other line is logged and skipped.

        Cancellation: safe, no report is lost.
        """
        stdout = self._process.stdout
        assert stdout is not None, "the job is started with a pipe"
        while line := await stdout.readline():
            try:
                return decode_report(line)
            except ValueError as exc:
                log.warning("job pid=%d unexpected=%r problem=%s", self.pid, line[:200], exc)
        return None

    async def end(self) -> int:
        """Kill what is left of the job and its Java machine; returns its exit code. Idempotent.

        The group is killed even when the Python process has ended: Java may have outlived it.
        Cancellation: safe; everything has been sent its signal by then.
        """
        kill_group(self._process)
        if self._beside is not None:
            self._beside.cancel()
            await asyncio.wait([self._beside])
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # Its pipes close with the group's last process, unless one that left the group holds them.
        await asyncio.wait([self._stderr], timeout=_PIPE_TIMEOUT)
        self._stderr.cancel()
        await asyncio.gather(self._stderr, return_exceptions=True)
        return code

    async def wait(self) -> int:
        """Wait until the Python process ends by itself; returns its exit code."""
        return await self._process.wait()

    def _take_line(self, line: str) -> None:
        log.debug("job pid=%d %s", self.pid, line)
        if line.strip():
            self._tail.append(line[:500])


def last_words(tail: str, code: int, name: str) -> str:
    """One line for a job that ended without saying why."""
    ended = f"the {name} job ended with exit code {code}"
    if code < 0:
        return f"the {name} job was killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return f"{ended}: {lines[-1]}" if lines else ended
