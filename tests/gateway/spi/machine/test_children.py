"""A child has what it is given, on both event loops, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from turns import counting_turns

from tidegate.spi.machine.children import follow_lines, kill_group, start_child

#: What the descriptors are, of the program itself, before it opens anything.
LIST = """
import json, os
found = {}
for name in os.listdir("/dev/fd"):
    try:
        status = os.fstat(int(name))
    except OSError:
        continue  # the one of the listing itself
    found[name] = status.st_dev, status.st_ino
print(json.dumps(found))
"""


async def descriptors_of_child(passed: int) -> dict[int, tuple[int, int]]:
    child = await start_child(
        [sys.executable, "-S", "-c", LIST],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=[passed],
    )
    output, errors = await child.communicate()
    assert child.returncode == 0, errors
    return {int(number): (node[0], node[1]) for number, node in json.loads(output).items()}


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_child_has_its_streams_and_what_it_is_passed(
    loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        (tmp_path / "locked").open("w") as file,
        (tmp_path / "passed").open("w") as passed,
        asyncio.Runner(loop_factory=loop) as runner,
    ):
        for ours in (listener, file):
            os.set_inheritable(ours.fileno(), True)  # as LMDB leaves its data file
        found = runner.run(descriptors_of_child(passed.fileno()))
        status, ours = os.fstat(passed.fileno()), passed.fileno()
    assert {0, 1, 2, ours} <= found.keys()
    streams = {found[0], found[1], found[2]}  # uvloop's child has each of them twice
    others = {number: node for number, node in found.items() if node not in streams}
    assert others == {ours: (status.st_dev, status.st_ino)}


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_no_garbage_is_collected_in_the_child(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """What a library frees there may wait for a thread that the child does not have, and we for the child."""
    where, told = os.pipe()
    before = gc.get_threshold()

    def tell(phase: str, info: dict[str, int]) -> None:
        os.write(told, b"%d\n" % os.getpid())

    async def run() -> None:
        gc.set_threshold(1)  # a child makes few objects before it runs its program
        gc.callbacks.append(tell)
        try:
            child = await start_child([sys.executable, "-S", "-c", ""])
        finally:
            gc.callbacks.remove(tell)
            gc.set_threshold(*before)
        await child.communicate()

    for _ in range(20):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(run())
        assert gc.isenabled()
    os.close(told)
    with os.fdopen(where) as seen:
        assert {int(line) for line in seen} <= {os.getpid()}


async def test_many_descriptors_do_not_hold_the_loop(tmp_path: Path) -> None:
    """Ten thousand clients are as many descriptors; a clock that runs beside counts what it misses."""
    opened = [os.open(tmp_path, os.O_RDONLY) for _ in range(700)]
    try:
        async with counting_turns() as turns:
            child = await start_child([sys.executable, "-S", "-c", ""], directory=tmp_path)
        await child.communicate()
    finally:
        for number in opened:
            os.close(number)
    assert turns.count >= 7


async def test_it_steps_back_with_all_that_it_starts(tmp_path: Path) -> None:
    """Also where Linux weighs sessions against one another, and a process's own niceness counts within its session alone."""
    look = (
        "import json, os; from pathlib import Path; group = Path('/proc/self/autogroup');"
        "print(json.dumps([os.nice(0), group.read_text() if group.exists() else '']), flush=True)"
    )
    program = (
        f"import subprocess, sys; input(); subprocess.run([sys.executable, '-S', '-c', {look!r}])"
    )
    child = await start_child(
        [sys.executable, "-S", "-c", program],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        directory=tmp_path,
        niceness=7,
    )
    output, _ = await child.communicate(b"\n")
    niceness, session = json.loads(output)
    assert niceness == min(os.nice(0) + 7, 19)
    if session:  # the kernel groups so
        # Nothing in it: we are in the machine's first session.
        ours = Path("/proc/self/autogroup").read_text().split()
        assert int(session.split()[-1]) == min(int(ours[-1] if ours else 0) + 7, 19)


async def test_it_has_a_session_and_a_directory_of_its_own(tmp_path: Path) -> None:
    program = "import os; print(os.getsid(0) == os.getpid(), os.getcwd(), os.environ['HERE'])"
    child = await start_child(
        [sys.executable, "-S", "-c", program],
        stdout=asyncio.subprocess.PIPE,
        environment={"HERE": "there"},
        directory=tmp_path,
    )
    output, _ = await child.communicate()
    assert output.decode().split() == ["True", str(tmp_path.resolve()), "there"]


async def test_a_program_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await start_child(["/nowhere/python"])


def test_each_line_of_a_pipe_is_told_however_it_is_cut_and_the_last_one_without_an_end() -> None:
    async def said() -> list[str]:
        stream = asyncio.StreamReader()
        lines: list[str] = []
        following = asyncio.create_task(follow_lines(stream, lines.append))
        for piece in (b"on", b"e\ntwo\n\xff", b"\n", b"x" * 200_000, b"\nlast"):
            stream.feed_data(piece)
            await asyncio.sleep(0)
        stream.feed_eof()
        await following
        return lines

    *lines, long, last = asyncio.run(said())
    assert lines == ["one", "two", "\ufffd"]
    assert set(long) == {"x"}
    assert last == "last"


def test_a_child_is_killed_with_what_it_started_and_killing_again_does_nothing() -> None:
    async def run() -> tuple[int, bytes]:
        child = await start_child(
            ["/bin/sh", "-c", "sleep 600 & echo started; wait"], stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        line = await child.stdout.readline()
        kill_group(child)
        code = await child.wait()
        # The pipe ends with the last process that has it.
        line += await asyncio.wait_for(child.stdout.read(), 60)
        kill_group(child)
        return code, line

    assert asyncio.run(run()) == (-9, b"started\n")
