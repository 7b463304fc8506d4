"""Large bodies on their way to a client: in order, in pieces, no faster than it reads."""

from typing import Any

import pytest
from large_fakes import FakeBodies, settled

from tidegate_protocols._large_out import (
    AHEAD_MAX,
    PIECE_BYTES_MAX,
    PIECE_BYTES_MIN,
    LargeOut,
    LargeWire,
    Share,
)


class FakeLink:
    peer = "somebody"

    def __init__(self):
        self.sent, self.flushes, self.is_aborted = [], 0, False

    def send(self, data):
        self.sent.append(data)

    def send_piece(self, data, *, last):
        self.sent.append((data, last))

    def flush(self):
        self.flushes += 1

    def abort(self):
        self.is_aborted = True


class Case:
    def __init__(self):
        self.link: Any = FakeLink()
        self.bodies = FakeBodies()
        self.idle, self.broken, self.missing = 0, [], []
        self.share = Share()
        self.out = LargeOut(
            self.link,
            self.bodies,
            idle=self.note_idle,
            broken=self.broken.append,
            share=self.share,
        )

    def note_idle(self):
        self.idle += 1

    def stream(self, data, head=b"<", tail=b">"):
        self.out.stream(head, self.bodies.holding(data), tail, self.missing.append)


async def test_without_a_body_bytes_go_straight_to_the_link():
    case = Case()
    case.out.send(b"a")
    assert (case.link.sent, case.out.is_busy) == ([b"a"], False)


async def test_a_body_goes_in_pieces_and_everything_else_waits_behind_it():
    case = Case()
    case.bodies.piece = 3
    case.stream(b"abcdefg")
    case.out.send(b"later")
    case.stream(b"xyz")
    assert case.out.is_busy
    await settled()
    assert case.link.sent == [
        (b"<", False),
        (b"abc", False),
        (b"def", False),
        (b"g", False),
        (b">", True),
        b"later",
        (b"<", False),
        (b"xyz", False),
        (b">", True),
    ]
    assert (case.idle, case.out.is_busy) == (1, False)
    assert all(reader.is_closed for reader in case.bodies.readers)
    assert case.link.flushes == 9


async def test_a_client_that_does_not_read_stops_the_reading():
    case = Case()
    case.bodies.piece = 2
    case.out.writable(False)
    case.stream(b"abcdef")
    await settled()
    assert case.link.sent == [(b"<", False), (b"ab", False)]
    assert case.bodies.readers[0].at == 4, "one piece is read ahead"
    case.out.writable(True)
    await settled()
    assert case.link.sent == [
        (b"<", False),
        (b"ab", False),
        (b"cd", False),
        (b"ef", False),
        (b">", True),
    ]


async def test_the_next_body_is_read_while_the_end_of_the_last_one_is_written():
    case = Case()
    case.bodies.piece = 2
    case.out.writable(False)
    case.stream(b"ab")
    case.stream(b"cdef")
    await settled()
    assert case.link.sent == [(b"<", False), (b"ab", False), (b">", True)]
    assert [reader.at for reader in case.bodies.readers] == [2, 2]
    case.out.cancel()
    await settled()
    assert all(reader.is_closed for reader in case.bodies.readers)


async def test_more_bodies_are_begun_while_there_are_few_clients():
    case = Case()
    case.bodies.piece = 2
    case.out.writable(False)
    for _ in range(AHEAD_MAX + 2):
        case.stream(b"abcdef")
        case.out.send(b"between")
    await settled()
    first, *behind = [reader.at for reader in case.bodies.readers]
    assert first == 4
    assert behind == [2] * (AHEAD_MAX // 2) + [0] * (AHEAD_MAX + 1 - AHEAD_MAX // 2)
    case.out.writable(True)
    await settled()
    body = [(b"<", False), *[(part, False) for part in (b"ab", b"cd", b"ef")], (b">", True)]
    assert case.link.sent == [*body, b"between"] * (AHEAD_MAX + 2)


def test_many_clients_have_one_body_begun_each():
    share = Share()
    depths = []
    for share.clients in (0, 1, 12, 13, 16, 17, 10_000):
        depths.append(share.ahead)
    assert depths == [3, 3, 3, 2, 2, 1, 1]


async def test_a_body_that_breaks_while_it_is_read_ahead_says_so_once():
    case = Case()
    case.bodies.piece, case.bodies.fails_at = 2, 2
    case.out.writable(False)
    case.stream(b"abcd")
    await settled()
    case.out.cancel()  # the piece that failed is never asked for
    await settled()
    assert (case.broken, case.missing, case.idle) == ([], [], 0)


def test_the_more_clients_there_are_the_smaller_are_their_pieces():
    share = Share()
    sizes = []
    for share.clients in (0, 1, 21, 64, 128, 1024, 10_000):
        sizes.append(share.piece_bytes)
    assert sizes[:3] == [PIECE_BYTES_MAX] * 3
    assert sizes[3:] == [(64 << 20) // 192, (64 << 20) // 384] + [PIECE_BYTES_MIN] * 2


@pytest.mark.parametrize("clients", [1, 4, 12, 13, 16, 21, 40, 64, 300])
def test_pieces_of_all_clients_together_have_their_bound(clients):
    share = Share()
    share.clients = clients
    # What is in the link, the next piece, and what is read of the bodies behind.
    assert clients * (2 + share.ahead) * share.piece_bytes <= 64 << 20


async def test_a_client_counts_while_a_body_is_on_its_way_however_that_ends():
    case = Case()
    case.stream(b"abcd")
    await settled()
    assert case.share.clients == 0
    case.out.writable(False)
    case.stream(b"abcd")
    await settled()
    assert case.share.clients == 1
    case.out.cancel()
    await settled()
    assert case.share.clients == 0


async def test_a_body_that_cannot_be_read_is_left_out_whole():
    case = Case()
    case.bodies.fails_at = 0
    case.stream(b"abcd")
    case.out.send(b"next")
    await settled()
    assert case.link.sent == [b"next"]
    assert (len(case.missing), case.broken, case.idle) == (1, [], 1)


async def test_a_body_that_breaks_in_the_middle_ends_everything():
    case = Case()
    case.bodies.piece, case.bodies.fails_at = 2, 2
    case.stream(b"abcd")
    case.stream(b"never")
    await settled()
    assert case.link.sent == [(b"<", False), (b"ab", False)]
    assert (len(case.broken), case.missing, case.idle) == (1, [], 0)
    assert not case.out.is_busy
    assert all(reader.is_closed for reader in case.bodies.readers)


async def test_a_bug_aborts_the_connection(caplog):
    case = Case()

    def explode(data, *, last):
        raise ValueError("bug")

    case.link.send_piece = explode
    case.stream(b"abcd")
    await settled()
    assert case.link.is_aborted
    assert not case.out.is_busy
    assert "ValueError" in caplog.text


async def test_cancelling_closes_the_readers_and_tells_nobody():
    case = Case()
    case.bodies.door.clear()
    case.stream(b"abcd")
    case.stream(b"efgh")
    await settled()
    case.out.cancel()
    case.out.cancel()
    await settled()
    assert (case.link.sent, case.idle, case.broken) == ([], 0, [])
    assert all(reader.is_closed for reader in case.bodies.readers)


async def test_a_wire_is_its_bytes_and_names_its_body():
    case = Case()
    body = case.bodies.holding(b"abcd")
    wire = LargeWire.made(b"head", body)
    assert wire == b"head"
    assert wire.large is body
