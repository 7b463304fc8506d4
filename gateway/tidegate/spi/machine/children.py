"""Child processes that have nothing of the gateway but what they are given.

A descriptor that a child inherits lives as long as the child: after a SIGKILL of the gateway, one that is still about
would hold the store's files, a listening port, a client's connection. uvloop closes none in the child, as Python's own event
loop does, and some libraries open files without asking for that (LMDB its data file). Whoever starts a process on the
event loop starts it here.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

#: Linux and macOS: one's own descriptors, by number.
_DESCRIPTORS: Final = "/dev/fd"
_STANDARD: Final = 2
#: A gateway with ten thousand clients has as many descriptors; this many are looked at in some tenths of a millisecond.
_SLICE: Final = 100
#: Most bytes of a line that ``readline`` of a stream gives.
LINE_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
#: Between two starts of a process that ends by itself, doubled each time; from the beginning again when it lasted.
AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 30.0
_LASTED_S: Final = 60.0


class Supervised(Protocol):
    """A process that :func:`supervise` keeps alive. Attributes: pid."""

    pid: int

    async def wait(self) -> int:
        """Wait until it has ended, by itself or not; its exit code."""
        ...

    async def end(self) -> None:
        """Kill it, and let go of all that belongs to it. Idempotent."""
        ...


_SupervisedT = TypeVar("_SupervisedT", bound=Supervised)


async def start_child(
    command: Sequence[str],
    *,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.DEVNULL,
    stderr: int = asyncio.subprocess.PIPE,
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> asyncio.subprocess.Process:
    """Start *command* in a session of its own, which no Ctrl-C reaches and which can be killed as a group.

    Args:
        command: the program and its arguments.
        stdin, stdout, stderr: as ``asyncio.create_subprocess_exec`` takes them.
        pass_fds: descriptors that the child gets besides, and no other.
        environment: its own; None: ours. directory: where it runs; None: where we do.
    Raises: OSError. Cancellation: safe before the child has started.
    """
    await _keep_descriptors()
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        env=None if environment is None else dict(environment),
        cwd=directory,
        start_new_session=True,
        limit=LINE_BYTES_MAX,
    )


def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL for a child of :func:`start_child` and all that it started and that is in its group still. Idempotent."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # PermissionError: macOS says so of a group that holds only ended processes


async def supervise(
    start: Callable[[], Awaitable[_SupervisedT]],
    running: Callable[[_SupervisedT | None], None],
    ended: Callable[[str, float], None],
) -> None:
    """Keep a process alive until this is cancelled, which ends it: start it, and again whenever it ends.

    Args:
        start: may raise OSError: it is tried again.
        running: told which one runs now; None: none does.
        ended: told why the last one runs no more, and in how many seconds the next one is started.
    """
    again, loop = AGAIN_S, asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            process = await start()
        except OSError as error:
            why = f"cannot be started: {error}"
        else:
            running(process)
            try:
                why = f"pid={process.pid} ended code={await process.wait()}"
            finally:
                running(None)
                await process.end()
        again = AGAIN_S if loop.time() - began > _LASTED_S else again
        ended(why, again)
        await asyncio.sleep(again)
        again = min(again * 2, _AGAIN_MAX_S)


async def follow_lines(stream: asyncio.StreamReader | None, take: Callable[[str], object]) -> None:
    """Give *take* each line of a child's pipe, until its end, so that the pipe is never full.

    A line may be of any length: of one that is longer than 64 KiB, *take* gets the end. What is no UTF-8 is replaced.
    """
    assert stream is not None, "it is started with a pipe"
    rest = ""
    while data := await stream.read(_READ_BYTES):
        *lines, rest = (rest + data.decode("utf-8", "replace")).split("\n")
        rest = rest[-_READ_BYTES:]
        for line in lines:
            take(line)
    if rest:
        take(rest)


async def _keep_descriptors() -> None:
    """No child inherits what is open now; what it is passed, the event loop lets through by itself.

    On the loop, not in a thread, which could come between another child's start and what that is passed.
    """
    numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]
    for done, number in enumerate(numbers):
        if done % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        if number > _STANDARD:
            try:
                os.set_inheritable(number, False)
            except OSError:
                pass  # closed meanwhile; the one of the listing was, at once
