"""Child processes that inherit nothing from the gateway but what they are given.

A descriptor that a child inherits lives as long as the child: after a SIGKILL of the gateway, a surviving child
would hold the store's files, a listening port, a client's connection. uvloop closes none in the child, unlike Python's
own event loop, and some libraries open files without close-on-exec (LMDB its data file). Start every child process on
the event loop here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol, TypeVar

#: Linux and macOS: this process's own descriptors, by number.
_DESCRIPTORS: Final = "/dev/fd"
_STANDARD: Final = 2
#: A gateway with ten thousand clients has as many descriptors; this many take some tenths of a millisecond.
_SLICE: Final = 100
#: Longest line that ``readline`` of a stream returns, in bytes.
LINE_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
#: Delay before restarting a process that ended by itself; doubles each time, and resets after a long enough run.
AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 30.0
_LASTED_S: Final = 60.0
NICENESS_MAX: Final = 19
#: For work beside the gateway that may take its time: clients wait for the gateway.
NICENESS: Final = 5
#: The kernel accepts a session weight from non-root users only once in a tenth of a second, for all sessions together.
_WEIGH_AGAIN_S: Final = 0.15
_WEIGH_TRIES: Final = 20


class Supervised(Protocol):
    """A process that :func:`supervise` keeps alive. Attributes: pid."""

    pid: int

    async def wait(self) -> int:
        """Wait until it has ended, by itself or not; return its exit code."""
        ...

    async def end(self) -> None:
        """Kill it, and release everything that belongs to it. Idempotent."""
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
    """Start *command* in its own session, which no Ctrl-C reaches and which can be killed as a group.

    Args:
        command: the program and its arguments.
        stdin, stdout, stderr: as ``asyncio.create_subprocess_exec`` takes them.
        pass_fds: the only other descriptors that the child gets.
        environment: None: ours. directory: where it runs; None: our working directory.
        niceness: how far it and all its children yield the processor to us (0 to 19, added to ours).
    Raises: OSError. Cancellation: safe before the child has started.
    """
    await _keep_descriptors()
    with _no_collection():
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


@contextmanager
def _no_collection() -> Generator[None]:
    """Collect no garbage for the length of a ``with`` block.

    uvloop forks, and runs Python's own hooks in the child before it becomes another program. A collection
    there can free what a library holds, such as a client of gRPC, whose lock only a thread that the child does
    not have would release. The loop would wait for that child for ever.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """SIGKILL a child of :func:`start_child` and all its descendants still in its group. Idempotent."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # PermissionError: macOS raises it for a group of only ended processes


async def supervise(
    start: Callable[[], Awaitable[_SupervisedT]],
    running: Callable[[_SupervisedT | None], None],
    ended: Callable[[str, float], None],
) -> None:
    """Keep a process alive: start it, and restart it whenever it ends. Cancelling this ends it.

    Args:
        start: starts it; after an OSError it is tried again.
        running: called with the process that runs now; None when none does.
        ended: called with why the last one ended, and in how many seconds the next one starts.
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
    """Pass *take* each line of a child's pipe until its end, so that the pipe never fills up.

    A line may be of any length: of one longer than 64 KiB, *take* gets the end. Invalid UTF-8 is replaced.
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
    """Lower the priority of the group, and of its session: where Linux groups processes by session (sched(7),
    autogroup), sessions get equal shares of a processor, whatever the niceness of the processes in them."""
    with suppress(OSError):  # it has ended
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PGRP, pid, min(ours + niceness, NICENESS_MAX))
    with suppress(OSError, ValueError):  # not Linux, or it does not group by session
        ours = Path("/proc/self/autogroup").read_text().rpartition(" ")[2]
        # Empty in the machine's first session (one that PID 1 started without setsid), which has no weight.
        _weigh(pid, min(int(ours or 0) + niceness, NICENESS_MAX), _WEIGH_TRIES)


def _weigh(pid: int, niceness: int, tries: int) -> None:
    with suppress(OSError):
        descriptor = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY)
        try:
            os.write(descriptor, b"%d" % niceness)
        except BlockingIOError:  # another session's was changed just now, and we are not root
            if tries > 1:
                loop = asyncio.get_running_loop()
                loop.call_later(_WEIGH_AGAIN_S, _weigh, pid, niceness, tries - 1)
        finally:
            os.close(descriptor)


async def _keep_descriptors() -> None:
    """Mark all open descriptors as not inheritable; the event loop itself passes on those in *pass_fds*.

    On the loop, not in a thread, which could interfere with another child being started.
    """
    numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]
    for done, number in enumerate(numbers):
        if done % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        if number > _STANDARD:
            try:
                os.set_inheritable(number, False)
            except OSError:
                pass  # closed meanwhile; that of the listing was closed at once
