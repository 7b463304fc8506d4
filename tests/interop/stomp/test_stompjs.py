"""@stomp/stompjs under Node against the running gateway, over WebSocket.

Needs Node 18 and npm; without them the tests are skipped with the reason, which `.ci/run` counts as
a failure.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from built import node_client
from free_ports import free_port
from gateway_process import GatewayProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.long,  # its packages are installed first
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None,
        reason="@stomp/stompjs needs Node, and node and npm are not both on PATH",
    ),
]
SOURCE = Path(__file__).parent / "stompjs"
BUILD = Path(__file__).resolve().parents[3] / "build" / "stompjs"
RUN_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def program() -> Path:
    """The client with its packages, installed beside a copy of it and kept for the next run."""
    return node_client(SOURCE, BUILD, "@stomp/stompjs")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    extra = f'[[listeners]]\nprotocol = "stomp"\ntransport = "ws"\nbind = "127.0.0.1:{port}"\n'
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), extra=extra) as running:
        yield f"ws://127.0.0.1:{port}/stomp"
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()


@pytest.mark.parametrize("kind", ["text", "binary"])
@pytest.mark.parametrize(
    "version",
    ["1.0", "1.1", "1.2"],
)
def test_stompjs(program, url, version, kind) -> None:
    done = subprocess.run(
        ["node", str(program), url, version, kind],
        cwd=BUILD,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
