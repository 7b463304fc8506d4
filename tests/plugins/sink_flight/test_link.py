"""The server's end of the link: it ends with the gateway, and says so when it does not understand it."""

import socket
import subprocess
import sys

import pytest

from tidegate_sink_flight import _protocol as protocol

FOLLOW = """
import socket, sys
from tidegate_sink_flight.server.link import Link
Link(socket.socket(fileno=int(sys.argv[1]))).follow()
"""


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        (protocol.frame(protocol.Answer(1, protocol.View())), 0, ""),
        (b"\x02\0\0\0no", 1, "not understood"),
    ],
    ids=["the gateway is gone", "it is not understood"],
)
def test_the_process_ends_and_says_why(sent: bytes, code: int, said: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        ours.sendall(sent)
        ours.shutdown(socket.SHUT_WR)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    assert said in stderr
    assert bool(stderr) == bool(said)
