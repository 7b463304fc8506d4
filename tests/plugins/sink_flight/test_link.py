"""The link between the gateway and its Flight server: both ends, and what goes over it."""

import asyncio
import io
import socket
import subprocess
import sys
from typing import Any

import pytest

from tidegate.spi import AcknowledgedMessage, Message
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight._process import ServerProcess

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


def row(number: int, body: bytes) -> AcknowledgedMessage:
    message = Message(destination="queue://q", body=body, received_at=1)
    return AcknowledgedMessage(number, number, message, 1, 1, 1, "", "", "")


LARGE = bytes(range(256)) * 12_000
SMALL = protocol.Answer(2, protocol.View("store-1", 1, 7))
ROWS = protocol.Rows([row(1, b"a"), row(2, LARGE), row(3, b""), row(4, LARGE[1:])], 4, [5])
ANSWER = protocol.Answer(1, ROWS)


def read(sent: io.BytesIO) -> protocol.Answer:
    """As the server's end does."""
    size = int.from_bytes(sent.read(protocol.LENGTH_BYTES), "little")
    return protocol.with_tails(protocol.decode_answer(sent.read(size)), sent.read)


def test_large_bodies_follow_their_frame_as_they_are() -> None:
    head, *bodies = protocol.pieces(ANSWER)
    assert bodies == [LARGE, LARGE[1:]]
    assert len(head) < protocol.TAIL_BYTES
    sent = io.BytesIO(b"".join([*protocol.pieces(ANSWER), *protocol.pieces(SMALL)]))
    first = read(sent)
    assert isinstance(first.body, protocol.Rows)
    assert [r.message.body for r in first.body.rows] == [b"a", LARGE, b"", LARGE[1:]]
    assert (first.id, first.body.through, first.body.damaged) == (1, 4, [5])
    assert read(sent) == SMALL
    assert ROWS.rows[1].message.body == LARGE, "what was sent stays as it was"


class Pipe:
    """Stands for the writer. Attributes: taken: what was written, by turns of the loop."""

    def __init__(self) -> None:
        self.taken: list[list[bytes]] = [[]]

    def is_closing(self) -> bool:
        return False

    def write(self, data: memoryview) -> None:
        self.taken[-1].append(bytes(data))

    async def drain(self) -> None:
        """It took all of it at once: nobody else had a turn."""


async def test_an_answer_is_written_in_slices_and_whole() -> None:
    pipe, nothing = Pipe(), asyncio.StreamReader()
    nothing.feed_eof()
    process: Any = type("P", (), {"stderr": nothing})()
    writer: Any = pipe
    server = ServerProcess(process, nothing, writer)
    answers = {1: ANSWER, 2: SMALL}

    async def turns() -> None:
        while True:
            await asyncio.sleep(0)
            pipe.taken.append([])

    async def answering(call: protocol.Call) -> protocol.Answer:
        return answers[call.id]

    others = asyncio.create_task(turns())
    question = protocol.Look("s")
    await asyncio.gather(
        *(server._answer(protocol.Call(number, question), answering) for number in (1, 2))
    )
    others.cancel()
    await asyncio.gather(others, server._stderr, return_exceptions=True)
    assert max(sum(map(len, turn)) for turn in pipe.taken) <= 2 * protocol.TAIL_BYTES
    sent = io.BytesIO(b"".join(data for turn in pipe.taken for data in turn))
    assert [read(sent).id, read(sent).id] == [1, 2]
    assert not sent.read()
