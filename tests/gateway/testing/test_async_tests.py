"""An async test of ours runs on uvloop, and fails with whatever goes wrong on its loop."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SAMPLE = """
import asyncio
import threading
import pytest
import uvloop

async def test_passes():
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)

async def test_callback():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

async def fails():
    raise ValueError("nobody awaits this")

async def test_forgotten():
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    del task

async def never_ends():
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("as it was cancelled")

async def test_cancelled(request):
    request.config.task = asyncio.create_task(never_ends())
    await asyncio.sleep(0)

@pytest.mark.timeout(0.2)
async def test_hangs():
    await asyncio.Event().wait()

async def ignore(reader, writer):
    writer.transport.abort()

async def test_client():
    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b"this is why"
    finally:
        server.close()

GO_ON = threading.Event()

async def test_thread():
    waiting = asyncio.create_task(asyncio.to_thread(GO_ON.wait))
    await asyncio.sleep(0.01)
    assert waiting == "this is why, too"

def test_the_last_one():
    GO_ON.set()
"""
CONFTEST = "import async_tests\nfrom async_tests import *\nasync_tests.THREADS_END_S = 0.1\n"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("sample")
    (directory / "test_sample.py").write_text(SAMPLE)
    (directory / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-v", "-c", str(ROOT / "pyproject.toml")]
    command += [
        "--rootdir",
        str(directory),
        "-o",
        f"pythonpath={ROOT / 'tests' / '_support' / 'runner'}",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "test_sample.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("test", "outcome", "reason"),
    [
        ("passes", "PASSED", ""),
        ("callback", "FAILED", "ZeroDivisionError"),
        ("forgotten", "FAILED", "ValueError: nobody awaits this"),
        ("cancelled", "ERROR", "ValueError: as it was cancelled"),
        ("hangs", "FAILED", "Timeout (>0.2s)"),
        ("client", "FAILED", "this is why'"),
        ("thread", "FAILED", "this is why, too"),
        ("thread", "ERROR", "a thread that the test began does not end"),
    ],
)
def test_nothing_on_the_loop_passes_unseen(
    output: str, test: str, outcome: str, reason: str
) -> None:
    assert f"test_sample.py::test_{test} {outcome}" in output
    assert reason in output


def test_a_client_that_a_failed_test_left_open_hides_nothing(output: str) -> None:
    assert "test_client ERROR" not in output
    assert "unclosed" not in output
