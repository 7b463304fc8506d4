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
from contextlib import suppress
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
NICENESS_MAX: Final = 19
#: Of what runs beside the gateway and takes its time: clients wait for the gateway.
NICENESS: Final = 5
#: The kernel takes the weight of a session from users but root once in a tenth of a second, whosever it is.
_WEIGH_AGAIN_S: Final = 0.15
_WEIGH_TRIES: Final = 20


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
    niceness: int = 0,
) -> asyncio.subprocess.Process:
    """Start *command* in a session of its own, which no Ctrl-C reaches and which can be killed as a group.

    Args:
        command: the program and its arguments.
        stdin, stdout, stderr: as ``asyncio.create_subprocess_exec`` takes them.
        pass_fds: descriptors that the child gets besides, and no other.
        environment: its own; None: ours. directory: where it runs; None: where we do.
        niceness: how far it, and all that it starts, steps back when we want the processor (0 to 19, added to ours).
    Raises: OSError. Cancellation: safe before the child has started.
    """
    await _keep_descriptors()
    process = await asyncio.create_subprocess_exec(
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
    if niceness:
        _step_back(process.pid, niceness)
    return process


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
    assert stream is not None, (
        "this program is started by the gateway, with a pipe; do not run it by hand"
    )
    rest = ""
    while data := await stream.read(_READ_BYTES):
        *lines, rest = (rest + data.decode("utf-8", "replace")).split("\n")
        rest = rest[-_READ_BYTES:]
        for line in lines:
            take(line)
    if rest:
        take(rest)


def _step_back(pid: int, niceness: int) -> None:
    """Where Linux groups processes by session (sched(7), autogroup), sessions get equal parts of a processor, however nice
    the processes in them are to one another: there the session is what has to be nice."""
    with suppress(OSError):  # it has ended
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PGRP, pid, min(ours + niceness, NICENESS_MAX))
    with suppress(OSError, ValueError):  # no Linux, or it does not group so
        ours = Path("/proc/self/autogroup").read_text().rpartition(" ")[2]
        # Empty in the machine's first session (one that PID 1 started without setsid), which has no weight of its own.
        _weigh(pid, min(int(ours or 0) + niceness, NICENESS_MAX), _WEIGH_TRIES)


def _weigh(pid: int, niceness: int, tries: int) -> None:
    with suppress(OSError):
        descriptor = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(descriptor, b"%d" % niceness)
        except BlockingIOError:  # some other session's was changed just now, and we are not root
            if tries > 1:
                loop = asyncio.get_running_loop()
                loop.call_later(_WEIGH_AGAIN_S, _weigh, pid, niceness, tries - 1)
        finally:
            os.close(descriptor)


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
