"""Large SENDs of one connection: order, back-pressure, and what is given up when it ends."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from large_fakes import FakeBodies, settled

from tidegate.spi import PeerProtocolError, RequestError
from tidegate_protocols._large_in import BODIES_MAX, HIGH_BYTES, LOW_BYTES
from tidegate_protocols._pace import Pace
from tidegate_protocols.stomp._receiving import LargeSends
from tidegate_protocols.stomp.codec.decoder import Decoder
from tidegate_protocols.stomp.codec.frames import Limits, Version

SIZE = 5000
LIMITS = Limits(large_bytes_min=2000, large_bytes_max=1 << 30)
UNSIZED = Limits(large_bytes_min=2000, large_bytes_max=1 << 30, large_unsized=True)


def send(number, size=SIZE):
    head = f"SEND\nn:{number}\ncontent-length:{size}\n\n".encode()
    return head + bytes([number]) * size + b"\0"


def open_send(number, size=SIZE):
    """Without content-length."""
    return f"SEND\nn:{number}\n\n".encode() + bytes([number]) * size + b"\0"


class Case:
    """What a session does with a LargeIn, and what it is told."""

    def __init__(self, limits):
        self.decoder = Decoder(limits)
        self.decoder.version = Version.V1_2
        self.bodies = FakeBodies()
        self.published, self.refused, self.others = [], [], []
        self.adjusted = self.went_on = 0
        self.crashes = []
        self.timers, self.is_paused = [], False
        self.error: Exception | None = None
        self.large = LargeSends(
            self.bodies,
            self.decoder,
            check=lambda head: None,
            publish=self.publish,
            adjust=self.adjust,
            failed=self.refuse,
            go_on=self.go_on,
            crashed=self.crashes.append,
            pace=Pace(60.0, self.call_later, lambda: self.is_paused, lambda: 0),
        )

    def call_later(self, delay_s, callback):
        self.timers.append(callback)
        return self

    def cancel(self):
        self.timers.clear()

    def time_passes(self):
        self.timers.pop()()

    def refuse(self, error, frame):
        self.refused.append((error, None if frame is None else frame.headers.get("n")))

    def adjust(self):
        self.adjusted += 1

    def publish(self, frame, body):
        if self.error is not None:
            raise self.error
        self.published.append((int(frame.headers["n"]), self.bodies.contents[body.id]))

    def feed(self, data):
        if data:
            self.decoder.receive_data(data)
        while self.large.receive():
            event = self.large.take_held() or next(self.decoder.events(), None)
            if event is None:
                return
            self.handle(event)

    def handle(self, event):
        if event.command == "SEND+":
            self.large.begin(event)
        else:
            self.others.append((event.command, len(self.published)))

    def go_on(self):
        self.went_on += 1
        self.feed(b"")


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
async def test_bodies_arrive_whole_however_they_are_cut(step):
    case = Case(UNSIZED)
    makers = itertools.cycle((send, open_send, open_send))
    data = b"".join(next(makers)(number) for number in range(1, 6))
    data += b"BEGIN\ntransaction:t\n\n\0"
    for at in range(0, len(data), step):
        case.feed(data[at : at + step])
        if at % 1000 == 0:
            await asyncio.sleep(0)
    await settled()
    assert case.published == [(number, bytes([number]) * SIZE) for number in range(1, 6)]
    assert case.others == [("BEGIN", 5)]
    assert len(case.bodies.writers) == 5
    assert not case.large.is_busy


async def test_other_frames_wait_until_everything_before_them_is_published():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(send(1) + b"BEGIN\ntransaction:t\n\n\0" + send(2) + b"COMMIT\ntransaction:t\n\n\0")
    await settled()
    assert (case.others, case.published, case.large.wants_pause) == ([], [], True)
    case.bodies.finish_door.set()
    await settled()
    assert case.others == [("BEGIN", 1), ("COMMIT", 2)]
    assert [number for number, _ in case.published] == [1, 2]
    assert not case.large.wants_pause


async def test_bodies_are_synced_side_by_side_and_published_in_order():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(b"".join(send(number) for number in range(BODIES_MAX + 2)))
    await settled()
    assert len(case.bodies.writers) == BODIES_MAX
    assert case.large.wants_pause  # the next one waits for a place
    case.bodies.finish_door.set()
    await settled()
    assert [number for number, _ in case.published] == list(range(BODIES_MAX + 2))


async def test_a_body_that_stands_still_ends_the_connection_behind_what_came_whole():
    case = Case(UNSIZED)
    case.feed(send(1) + send(2)[:3000])
    await settled()
    case.time_passes()  # it has just come
    case.is_paused = True
    case.time_passes()  # nothing can come
    case.is_paused = False
    case.feed(send(2)[3000:3001])
    case.time_passes()  # a byte is enough: it moves
    assert (case.refused, len(case.timers)) == ([], 1)
    case.time_passes()
    ((error, number),) = case.refused
    assert ("body_timeout" in str(error), number) == (True, "2")
    assert [number for number, _ in case.published] == [1]
    assert case.timers == []


async def test_a_body_that_has_come_is_waited_for_no_more():
    case = Case(UNSIZED)
    case.feed(send(1))
    assert case.timers == []
    case.feed(send(2)[:3000])
    assert len(case.timers) == 1
    case.large.cut()
    assert case.timers == []


async def test_a_slow_disk_pauses_the_socket_until_it_has_caught_up():
    case = Case(UNSIZED)
    case.bodies.door.clear()
    size = 4 * HIGH_BYTES
    case.feed(send(1, size)[:100])
    await settled()  # that much is being written and does not wait
    case.feed(bytes([1]) * HIGH_BYTES)
    assert not case.large.wants_pause
    case.feed(bytes([1]))
    assert (case.large.wants_pause, case.adjusted) == (True, 1)
    case.bodies.door.set()
    await settled()
    assert (case.large.wants_pause, case.adjusted) == (False, 2)
    assert LOW_BYTES < HIGH_BYTES
    case.large.abandon()


async def test_what_waits_is_written_in_large_pieces():
    case = Case(UNSIZED)
    case.bodies.door.clear()
    size = 1 << 21
    data = send(1, size)
    for at in range(0, len(data), 1 << 16):
        case.feed(data[at : at + (1 << 16)])
    await settled()
    case.bodies.door.set()
    await settled()
    (writer,) = case.bodies.writers
    assert sum(writer.writes) == size
    assert len(writer.writes) <= 5
    assert len(case.published) == 1


async def test_abandoning_gives_up_what_is_not_published():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(send(1) + send(2)[:3000])
    await settled()
    case.large.abandon()
    case.large.abandon()
    case.bodies.finish_door.set()
    await settled()
    assert [writer.is_abandoned for writer in case.bodies.writers] == [True, True]
    assert (case.published, case.refused) == ([], [])


async def test_what_came_whole_is_published_when_the_client_is_gone():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(send(1) + send(2) + send(3)[:3000])
    await settled()
    assert case.large.cut()
    assert case.large.cut()
    assert [writer.is_abandoned for writer in case.bodies.writers] == [False, False, True]
    assert case.went_on == 0
    case.bodies.finish_door.set()
    await settled()
    assert [number for number, _ in case.published] == [1, 2]
    assert (case.went_on, case.refused, case.large.cut()) == (1, [], False)


async def test_frames_behind_it_are_handled_when_the_client_is_gone():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    begin, commit = b"BEGIN\ntransaction:t\n\n\0", b"COMMIT\ntransaction:t\n\n\0"
    rest = b"".join(send(number) for number in range(2, 9)) + commit + send(9)[:-1]
    case.feed(send(1) + begin + rest)
    await settled()
    assert case.large.cut()
    case.bodies.finish_door.set()
    await settled()
    assert case.others == [("BEGIN", 1), ("COMMIT", 8)]
    assert [number for number, _ in case.published] == list(range(1, 9))
    assert case.bodies.writers[-1].is_abandoned
    assert not case.large.is_busy


@pytest.mark.parametrize("made", [send, open_send])
@pytest.mark.parametrize("done", [2000, 3000, SIZE, SIZE + 1])
async def test_a_body_counts_when_its_nul_is_here(done, made):
    case = Case(UNSIZED)
    head = len(made(1)) - SIZE - 1
    case.feed(made(1)[: head + done])
    await settled()
    case.large.cut()
    await settled()
    assert len(case.published) == (done == SIZE + 1)
    assert case.bodies.writers[0].is_abandoned == (done != SIZE + 1)
    assert not case.large.is_busy


async def test_what_came_before_nonsense_is_published_before_it_is_refused():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(send(1) + send(2) + b"NONSENSE\n\n\0" + send(3))
    await settled()
    assert (case.refused, case.large.wants_pause) == ([], True)
    case.bodies.finish_door.set()
    await settled()
    assert [number for number, _ in case.published] == [1, 2]
    (refused,) = case.refused
    assert "unknown command" in str(refused[0])
    assert len(case.bodies.writers) == 2


async def test_what_came_before_a_body_that_failed_is_published_and_nothing_behind_it():
    case = Case(UNSIZED)
    case.bodies.finish_door.clear()
    case.feed(send(1))
    await settled()
    case.bodies.fails_at = 0
    case.feed(send(2) + send(3) + b"BEGIN\ntransaction:t\n\n\0" + send(4)[:2500])
    await settled()
    assert case.refused == []
    case.bodies.fails_at = None
    case.bodies.finish_door.set()
    await settled()
    assert [number for number, _ in case.published] == [1]
    assert [number for _, number in case.refused] == ["2"]
    assert case.others == []
    assert [writer.is_abandoned for writer in case.bodies.writers] == [False, True, True]


async def test_the_first_of_two_problems_counts():
    case = Case(UNSIZED)
    case.bodies.door.clear()
    case.bodies.fails_at = 0
    case.feed(send(1) + send(2) + b"NONSENSE\n\n\0")
    await settled()
    assert case.refused == []
    case.bodies.door.set()
    await settled()
    assert [number for _, number in case.refused] == ["1"]


async def test_a_defect_ends_the_connection():
    case = Case(UNSIZED)
    case.error = ValueError("a defect")
    case.feed(send(1) + send(2))
    await settled()
    assert (case.crashes, case.refused, case.large.is_busy) == ([case.error], [], False)


async def test_a_store_that_fails_is_told_once_with_the_frame():
    case = Case(UNSIZED)
    case.bodies.fails_at = 0
    case.feed(send(1) + send(2))
    await settled()
    assert [number for _, number in case.refused] == ["1"]
    assert all(writer.is_abandoned for writer in case.bodies.writers)


async def test_a_broker_that_refuses_is_told_with_the_frame():
    case = Case(UNSIZED)
    case.error = RequestError("no")
    case.feed(send(1))
    await settled()
    assert case.refused == [(case.error, "1")]


async def test_a_body_without_its_nul_is_an_error():
    case = Case(UNSIZED)
    case.feed(send(1) + send(2)[:-1] + b"x")
    with pytest.raises(PeerProtocolError):
        case.decoder.receive_data(b"more")
    await settled()
    assert [number for number, _ in case.published] == [1]
    ((error, number),) = case.refused
    assert ("not followed by NUL" in str(error), number) == (True, "2")
    assert case.bodies.writers[1].is_abandoned


@pytest.mark.parametrize(
    ("head", "is_large"),
    [
        ("SEND\ncontent-length:2000\n\n", True),
        ("SEND\ncontent-length:1999\n\n", False),
        ("SEND\nretain:true\ncontent-length:2000\n\n", False),
        ("SEND\nretain:false\ncontent-length:2000\n\n", True),
        ("SEND\r\ncontent-length:2000\r\n\r\n", True),
        ("SEND\n\n", True),
        ("SEND\nretain:true\n\n", False),
        ("SEND\r\nretain:false\r\n\r\n", True),
        ("BEGIN\ncontent-length:2000\n\n", False),
        ("BEGIN\n\n", False),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 50])
def test_the_decoder_gives_out_the_head_of_a_large_send(head, is_large, cut):
    decoder = Decoder(UNSIZED)
    decoder.version = Version.V1_2
    data = head.encode() + b"x" * (1999 if ":1999" in head else 2000) + b"\0"
    first = [data] if not cut else [data[i : i + cut] for i in range(0, len(data), cut)]
    commands = []
    for piece in first:
        decoder.receive_data(piece)
        commands += [event.command for event in itertools.islice(decoder.events(), 1)]
    assert commands == (["SEND+"] if is_large else [head.split("\n")[0].strip()])


@pytest.mark.parametrize("length", ["1073741825", "9" * 30])
def test_a_body_above_the_limit_is_refused_by_its_head(length):
    decoder = Decoder(LIMITS)
    decoder.version = Version.V1_2
    decoder.receive_data(f"SEND\ncontent-length:{length}\n\n".encode())
    with pytest.raises(PeerProtocolError, match="limit of 1073741824 bytes"):
        next(decoder.events(), None)


def test_before_the_version_is_known_nothing_is_large_that_may_not_come():
    decoder = Decoder(LIMITS)
    decoder.receive_data(b"SEND\ncontent-length:5000\n\n")
    assert next(decoder.events()).command == "SEND+"  # which the session refuses


# ------------------------------------------------------------------------ without content-length


def decoder_with(limits) -> Any:
    decoder = Decoder(limits)
    decoder.version = Version.V1_2
    return decoder


def frames_of(data, limits, cuts=()) -> list[Any]:
    """Command, headers and body of each frame in *data*, and "error" when there was one."""
    decoder = decoder_with(limits)
    found: list[Any] = []
    coming: Any = None
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    try:
        for start, end in itertools.pairwise(ends):
            decoder.receive_data(data[start:end])
            while True:
                if coming is not None:
                    head, size, body = coming
                    while piece := decoder.take_body():
                        body += piece
                    if not decoder.end_body():
                        break
                    assert size in (None, len(body))
                    found.append((head.command, head.headers, bytes(body)))
                    coming = None
                event = next(decoder.events(), None)
                if event is None:
                    break
                if event.command == "SEND+":
                    assert event.size is None or event.size >= limits.large_bytes_min
                    coming = event.head, event.size, bytearray()
                elif event.command == "ACK*":
                    found += [("ACK", ids) for ids in event.ids]
                else:
                    found.append((event.command, event.headers, event.body))
    except PeerProtocolError:
        found.append("error")
    return found


WIRE = st.one_of(
    st.builds(
        lambda head, size, body, end: head + (body * 4000)[:size] + end,
        st.sampled_from(
            [b"SEND\n\n", b"SEND\na:b\n\n", b"SEND\r\n\r\n", b"SEND\nretain:true\n\n", b"BEGIN\n\n"]
        ),
        st.sampled_from([0, 1, 1024, 1025, 1026, 2000, 2999, 3000, 3001]),
        st.sampled_from([b"x", b"\n", b"SEND\n\n"]),
        st.sampled_from([b"\0", b"\0\n", b"\0\r\n"]),
    ),
    st.integers(1, 3001).map(lambda n: b"SEND\ncontent-length:%d\n\n%s\0" % (n, bytes(n))),
    st.sampled_from([b"\n", b"ACK\nid:1-1\n\n\0", b"NONSENSE\n", b"\0", b"SEND\n"]),
)


@given(
    data=st.lists(WIRE, max_size=6).map(b"".join),
    large=st.sampled_from([1025, 1026, 2000, 3000, 3001]),
    unsized=st.booleans(),
    cuts=st.lists(st.integers(0, 20_000), max_size=12),
)
@settings(deadline=None)
def test_streaming_changes_nothing_but_where_a_body_is(data, large, unsized, cuts):
    plain = Limits(body_bytes=3000)
    streaming = Limits(
        body_bytes=3000, large_bytes_min=large, large_bytes_max=3000, large_unsized=unsized
    )
    expected = frames_of(data, plain)
    assert frames_of(data, streaming) == expected
    assert frames_of(data, streaming, cuts) == expected


def test_a_body_is_streamed_once_it_is_large_and_not_before():
    decoder = decoder_with(UNSIZED)
    decoder.receive_data(b"SEND\n\n" + b"x" * 1999)
    assert list(decoder.events()) == []
    decoder.receive_data(b"x")
    (event,) = decoder.events()
    assert (event.command, event.size) == ("SEND+", None)
    assert decoder.take_body() == b"x" * 2000
    assert (decoder.take_body(), decoder.end_body()) == (b"", False)
    assert list(decoder.events()) == []
    decoder.receive_data(b"yy\0SEND\n\nz\0")
    assert (decoder.take_body(), decoder.take_body()) == (b"yy", b"")
    assert decoder.end_body()
    assert [event.body for event in decoder.events()] == [b"z"]
    assert decoder.buffered_bytes == 0


def test_a_body_of_which_all_is_here_has_a_size():
    decoder = decoder_with(UNSIZED)
    decoder.receive_data(open_send(1, 2000))
    (event,) = decoder.events()
    assert event.size == 2000


class Counted(bytes):
    """Counts the bytes that are looked at, one by one and put together."""

    searched = 0

    def find(self, *args):
        Counted.searched += len(self)
        return super().find(*args)


def test_a_long_body_is_looked_through_once():
    size, step = 1 << 20, 1000
    decoder = decoder_with(UNSIZED)
    decoder.receive_data(b"SEND\n\n" + b"x" * 2000)
    assert len(list(decoder.events())) == 1
    while decoder.take_body():
        pass
    Counted.searched = taken = 0
    for _ in range(0, size, step):
        decoder.receive_data(Counted(b"x" * step))
        assert list(decoder.events()) == []
        while piece := decoder.take_body():
            taken += len(piece)
        assert not decoder.end_body()
        assert decoder.buffered_bytes == 0
    assert taken == Counted.searched >= size


@pytest.mark.parametrize("step", [1, 700, 1 << 20])
async def test_a_body_that_grows_above_the_limit_is_refused_with_its_frame(step):
    limits = Limits(large_bytes_min=2000, large_bytes_max=4000, large_unsized=True)

    case = Case(limits)
    data = open_send(1, 4000) + open_send(2, 4001)
    for at in range(0, len(data), step):
        if case.refused:
            break
        case.feed(data[at : at + step])
        await asyncio.sleep(0)
    await settled()
    assert [number for number, _ in case.published] == [1]
    ((error, number),) = case.refused
    assert "limit of 4000 bytes" in str(error)
    if step < 4000:  # else it is refused before there is anything to write
        assert number == "2"
        assert case.bodies.writers[1].is_abandoned


@pytest.mark.parametrize("head", [b"SEND\nretain:true\n\n", b"BEGIN\n\n"])
@pytest.mark.parametrize("step", [1, 700, 1 << 20])
def test_other_bodies_keep_their_limit(head, step):
    limits = Limits(body_bytes=3000, large_bytes_min=2000, large_bytes_max=9000, large_unsized=True)
    assert frames_of(head + b"x" * 3000 + b"\0", limits, range(0, 4000, step))[0][2] == b"x" * 3000
    assert frames_of(head + b"x" * 3001, limits, range(0, 4000, step)) == ["error"]


def test_nothing_is_gathered_above_the_limit_of_what_is_in_memory():
    """Only larger bodies would be streamed, and which are larger shows too late."""
    limits = Limits(body_bytes=3000, large_bytes_min=3002, large_bytes_max=9000, large_unsized=True)
    assert frames_of(b"SEND\n\n" + b"x" * 3001, limits) == ["error"]
    assert frames_of(b"SEND\n\n" + b"x" * 5000 + b"\0", limits) == ["error"]
    limits = Limits(body_bytes=3000, large_bytes_min=3001, large_bytes_max=9000, large_unsized=True)
    assert frames_of(b"SEND\n\n" + b"x" * 5000 + b"\0", limits)[0][2] == b"x" * 5000


def test_a_store_that_wants_to_know_the_size_is_not_given_one_without():
    decoder = decoder_with(LIMITS)
    decoder.receive_data(open_send(1, 9000))
    assert [(event.command, len(event.body)) for event in decoder.events()] == [("SEND", 9000)]
