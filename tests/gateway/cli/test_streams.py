"""Started with closed standard streams, as some supervisors do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_process import GatewayProcess


class _Closed(GatewayProcess):
    """Started without standard streams."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *super().command()]


def test_a_gateway_without_standard_streams_serves_and_stops(tmp_path: Path) -> None:
    with _Closed(tmp_path) as gateway:
        for number in range(3):
            target = Path(f"/proc/{gateway.pid}/fd/{number}").readlink()
            assert str(target) == "/dev/null"
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", gateway.stomp_port), 10) as client:
                client.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
                assert client.recv(100).startswith(b"CONNECTED")
        assert gateway.stop() == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_every_closed_stream_becomes_one_of_nothing_and_the_others_stay(closed: str) -> None:
    code = (
        "import os, sys; from tidegate.cli._streams import have_standard_streams as have; have();"
        "print('out'); print('err', file=sys.stderr); sys.stdin.read();"
        "sys.exit(os.open(os.devnull, os.O_RDONLY))"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
    )
    is_out, is_err = ">&-" not in closed.replace("2>&-", ""), "2>&-" not in closed
    assert (done.stdout, done.stderr) == ("out\n" * is_out, "err\n" * is_err)
    assert done.returncode > 2, "the first file that is opened is none of the three"
