"""Codec cases as data, each run whole, byte by byte and with trailing bytes; and any bytes at all."""

import tracemalloc
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.spi import FrameTooLargeError, PeerProtocolError
from tidegate_protocols.stomp import (
    CLIENT_COMMANDS,
    HEART_BEAT,
    NEED_DATA,
    SERVER_COMMANDS,
    AckRun,
    Decoder,
    Frame,
    Limits,
    Version,
    encode,
)

V10, V11, V12 = Version.V1_0, Version.V1_1, Version.V1_2
SMALL = Limits(header_count=3, header_line_bytes=20, header_bytes=50, body_bytes=10)


def F(command: str, body: bytes = b"", pairs: Any = (), **headers: Any) -> Frame:
    return Frame(command, {k.replace("_", "-"): v for k, v in headers.items()}, body, pairs)


# (name, version before the bytes, bytes, frames)
CASES = [
    ("SEND with a body up to NUL", V12, b"SEND\na:1\n\nbody\0", [F("SEND", b"body", a="1")]),
    ("no headers", V12, b"DISCONNECT\n\n\0", [F("DISCONNECT")]),
    ("empty value", V12, b"SEND\na:\n\n\0", [F("SEND", a="")]),
    ("NUL in a body with content-length", V12, b"SEND\ncontent-length:3\n\n\0a\0\0",
     [F("SEND", b"\0a\0", content_length="3")]),
    ("content-length beyond the table", V12, b"SEND\ncontent-length:2000\n\n" + b"x" * 2000 + b"\0",
     [F("SEND", b"x" * 2000, content_length="2000")]),
    ("content-length with leading zeros", V12, b"SEND\ncontent-length:002\n\nab\0",
     [F("SEND", b"ab", content_length="002")]),
    ("content-length 0", V12, b"SEND\ncontent-length:0\n\n\0", [F("SEND", content_length="0")]),
    ("a blank line inside a body", V12, b"SEND\na:1\n\nx\n\ny\0", [F("SEND", b"x\n\ny", a="1")]),
    ("CRLF everywhere (1.2)", V12, b"SEND\r\na:1\r\n\r\nx\r\n\r\n\0\r\n",
     [F("SEND", b"x\r\n\r\n", a="1")]),
    ("CRLF blank line before a body with LF LF", V12, b"SEND\na:1\n\r\nx\n\ny\0",
     [F("SEND", b"x\n\ny", a="1")]),
    ("CRLF blank line before a body that begins with LF", V12, b"SEND\r\na:1\r\n\r\n\nx\0",
     [F("SEND", b"\nx", a="1")]),
    ("CRLF in CONNECT of any version", None, b"CONNECT\r\naccept-version:1.1\r\n\r\n\0",
     [F("CONNECT", accept_version="1.1")]),
    ("CRLF frame in 1.1", V11, b"SEND\r\na:1\r\n\r\n\0", [F("SEND", a="1")]),
    ("CR is data in an LF frame of 1.1", V11, b"SEND\na:1\r\n\n\0", [F("SEND", a="1\r")]),
    ("CR is data in an LF frame of 1.0", V10, b"SEND\na:1\r\n\n\0", [F("SEND", a="1\r")]),
    ("escapes of 1.2", V12, b"SEND\na\\cb:\\n\\r\\\\n\\c\n\n\0", [Frame("SEND", {"a:b": "\n\r\\n:"})]),
    ("escapes of 1.1", V11, b"SEND\na:x\\ny\\c\\\\\n\n\0", [F("SEND", a="x\ny:\\")]),
    ("no escapes in 1.0", V10, b"SEND\na:x\\ny\\t\n\n\0", [F("SEND", a="x\\ny\\t")]),
    ("no escapes in CONNECT", None, b"CONNECT\naccept-version:1.2\nlogin:a\\tb:c\n\n\0",
     [F("CONNECT", accept_version="1.2", login="a\\tb:c")]),
    ("colons in a value", V12, b"SEND\na:b:c:d\n\n\0", [F("SEND", a="b:c:d")]),
    ("UTF-8 headers", V12, "SEND\nnäme:wört\n\n\0".encode(), [F("SEND", näme="wört")]),
    ("the first of repeated headers wins", V12, b"SEND\na:1\nb:2\na:3\n\n\0",
     [F("SEND", pairs=(("a", "1"), ("b", "2"), ("a", "3")), a="1", b="2")]),
    ("padding stays in 1.2", V12, b"SEND\ndestination: /queue/a \n\n\0",
     [F("SEND", destination=" /queue/a ")]),
    ("padding of known headers goes in 1.0", V10, b"SEND\ndestination: /queue/a \nmine: x\n\n\0",
     [F("SEND", destination="/queue/a", mine=" x")]),
    ("padding in the CONNECT of 1.0's own example", None, b"CONNECT\nlogin: me\npasscode:x\n\n\0",
     [F("CONNECT", login="me", passcode="x")]),
    ("padding stays in the CONNECT of 1.1", None, b"CONNECT\naccept-version:1.1\nlogin: me\n\n\0",
     [F("CONNECT", accept_version="1.1", login=" me")]),
    ("line ends between frames", V12, b"\n\r\n\nSEND\n\n\0\n\n\r\nSEND\n\n\0\n", [F("SEND")] * 2),
    ("STOMP instead of CONNECT", None, b"STOMP\naccept-version:1.2\n\n\0",
     [F("STOMP", accept_version="1.2")]),
    ("ACK with more than an id is a frame", V12, b"ACK\nid:1-2\nreceipt:3\n\n\0",
     [F("ACK", id="1-2", receipt="3")]),
    ("ACK with a foreign id is a frame", V12, b"ACK\nid:abc\n\n\0", [F("ACK", id="abc")]),
    ("ACK in 1.1 is a frame", V11, b"ACK\nid:1-2\n\n\0", [F("ACK", id="1-2")]),
]  # fmt: skip

# (name, version, bytes, a part of the error's text)
ERRORS = [
    ("unknown command", V12, b"HELLO\n\n\0", "unknown command"),
    ("unknown command without a line end", V12, b"ABCDEFGHIJKLMNOP", "unknown command"),
    ("lower case", V12, b"send\n\n\0", "unknown command"),
    ("NUL where a command should be", V12, b"\0", "unknown command"),
    ("HTTP", None, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
    ("TLS", None, bytes.fromhex("160301020001000001fc0303"), "TLS"),
    ("MQTT", None, b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", "MQTT"),
    ("not UTF-8", V12, b"SEND\na:\xff\n\n\0", "not UTF-8"),
    ("command not UTF-8", V12, b"\xff\xfe\n\n\0", "unknown command"),
    ("no colon", V12, b"SEND\nabc\n\n\0", "no colon"),
    ("no name", V12, b"SEND\n:abc\n\n\0", "no name"),
    ("undefined escape in 1.2", V12, b"SEND\na:\\t\n\n\0", "undefined escape"),
    ("undefined escape in 1.1", V11, b"SEND\na:\\r\n\n\0", "undefined escape"),
    ("lone backslash at the end", V12, b"SEND\na:b\\\n\n\0", "undefined escape"),
    ("bare CR in 1.2", V12, b"SEND\na:b\rc\n\n\0", "carriage return"),
    ("CR between frames", V12, b"\rSEND\n\n\0", "carriage return"),
    ("NUL in the headers", V12, b"SEND\na:b\0c\n\n\0", "NUL inside the headers"),
    ("no blank line", V12, b"SEND\na:b\n\0", "NUL inside the headers"),
    ("content-length is no number", V12, b"SEND\ncontent-length:x\n\nab\0", "not a number"),
    ("content-length is negative", V12, b"SEND\ncontent-length:-1\n\nab\0", "not a number"),
    ("content-length in Arabic digits", V12, "SEND\ncontent-length:٣\n\nabc\0".encode(), "not a n"),
    ("content-length too small", V12, b"SEND\ncontent-length:1\n\nab\0", "not followed by NUL"),
    ("server frame from a client", V12, b"MESSAGE\n\n\0", "unknown command"),
]  # fmt: skip


def decoder(version, limits=None, commands=CLIENT_COMMANDS) -> Any:
    made = Decoder(limits, commands)
    made.version = version
    return made


def feed(made, data, step):
    for position in range(0, len(data), step):
        made.receive_data(data[position : position + step])
        list(made.events())


def drain(made):
    events = []
    while (event := made.next_event()) is not NEED_DATA:
        if event is not HEART_BEAT:
            events.append(event)
    return events


@pytest.mark.parametrize(
    ("version", "data", "frames"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
class TestCases:
    def test_whole(self, version, data, frames):
        made = decoder(version)
        made.receive_data(data)
        assert list(made.events()) == frames
        assert made.buffered_bytes == 0

    def test_whole_event_by_event(self, version, data, frames):
        made = decoder(version)
        made.receive_data(data)
        assert drain(made) == frames

    def test_byte_by_byte(self, version, data, frames):
        made = decoder(version)
        events = []
        for position in range(len(data)):
            made.receive_data(data[position : position + 1])
            events += drain(made) if position % 2 else list(made.events())
        assert events == frames

    def test_with_trailing_bytes(self, version, data, frames):
        made = decoder(version)
        made.receive_data(data + b"SEND\nx:y\n\nab")
        assert list(made.events()) == frames
        assert list(made.events()) == []
        made.receive_data(b"c\0")
        assert list(made.events()) == [F("SEND", b"abc", x="y")]


@pytest.mark.parametrize(
    ("version", "data", "text"), [c[1:] for c in ERRORS], ids=[c[0] for c in ERRORS]
)
class TestErrors:
    def test_whole(self, version, data, text):
        made = decoder(version)
        made.receive_data(data)
        with pytest.raises(PeerProtocolError, match=text):
            list(made.events())

    def test_byte_by_byte(self, version, data, text):
        made = decoder(version)
        with pytest.raises(PeerProtocolError):  # perhaps before the bytes that tell the reason
            feed(made, data, 1)

    def test_stays_broken(self, version, data, text):
        made = decoder(version)
        made.receive_data(data)
        for _ in range(2):
            with pytest.raises(PeerProtocolError, match=text):
                made.next_event()
        with pytest.raises(PeerProtocolError, match=text):
            made.receive_data(b"SEND\n\n\0")
        with pytest.raises(PeerProtocolError, match=text):
            next(made.events())


LIMIT_CASES = [
    ("header count", b"SEND\na:1\nb:2\nc:3\nd:4\n\n\0", "header count"),
    ("header line", b"SEND\na:" + b"x" * 19 + b"\n\n\0", "header line"),
    ("headers together", b"SEND\na:" + b"x" * 18 + b"\nb:" + b"x" * 18 + b"\nc:12345678\n\n\0", "header block"),
    ("headers that never end", b"SEND\n" + b"a:b\n" * 12, "header block"),
    ("a header line that never ends", b"SEND\na:" + b"x" * 50, "header block"),
    ("body up to NUL", b"SEND\n\n" + b"x" * 11 + b"\0", "body"),
    ("body that never ends", b"SEND\n\n" + b"x" * 80, "body"),
    ("content-length", b"SEND\ncontent-length:11\n\n", "body"),
    ("content-length beyond the table", b"SEND\ncontent-length:1500\n\n", "body"),
    ("content-length of many digits", b"SEND\ncontent-length:" + b"9" * 5, "body"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "text"), [c[1:] for c in LIMIT_CASES], ids=[c[0] for c in LIMIT_CASES]
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_frames_above_a_limit_are_refused(data, text, step):
    made = decoder(V12, SMALL)
    if data.endswith(b"99999"):
        data += b"\n\n"
    with pytest.raises(FrameTooLargeError, match=text):
        feed(made, data, step)


def test_frames_at_the_limits_pass():
    data = b"SEND\na:" + b"x" * 18 + b"\nb:2\nc:3\n\n" + b"y" * 10 + b"\0"
    made = decoder(V12, SMALL)
    made.receive_data(data + b"SEND\ncontent-length:10\n\n" + b"y" * 10 + b"\0")
    assert [len(frame.body) for frame in made.events()] == [10, 10]


def test_content_length_of_too_many_digits_is_too_large():
    made = decoder(V12)
    made.receive_data(b"SEND\ncontent-length:" + b"9" * 5000 + b"\n\n")
    with pytest.raises(FrameTooLargeError):
        made.next_event()


@pytest.mark.parametrize("step", [1, 20, 1000])
@pytest.mark.parametrize("head", [b"STOMP\n\n", b"CONNECT\ncontent-length:4\n\n"])
def test_a_greeting_with_a_body_is_refused_however_it_comes(head, step):
    with pytest.raises(PeerProtocolError, match="must not have a body"):
        feed(decoder(None), head + b"body\0", step)


def test_consecutive_plain_acks_come_as_one_run():
    made = decoder(V12)
    made.receive_data(
        b"ACK\nid:1-10\n\n\0ACK\nid:2-11\n\n\0\nACK\nid:1-12\n\n\0SEND\n\n\0ACK\nid:1-13\n\n\0ACK\nid:1-1"
    )
    assert list(made.events()) == [
        AckRun([(b"1", b"10"), (b"2", b"11"), (b"1", b"12")]),
        F("SEND"),
        AckRun([(b"1", b"13")]),
    ]
    made.receive_data(b"4\n\n\0")
    assert made.next_event() == AckRun([(b"1", b"14")])


def test_a_consumer_may_stop_at_a_frame_and_change_the_version():
    made = decoder(None)
    made.receive_data(b"CONNECT\naccept-version:1.2\n\n\0SEND\na:\\n\n\n\0")
    assert next(made.events()).command == "CONNECT"
    made.version = V12
    assert list(made.events()) == [F("SEND", a="\n")]


def test_a_consumer_may_stop_at_the_last_frame():
    made = decoder(V12)
    made.receive_data(b"SEND\n\n\0")
    next(made.events())
    assert made.next_event() is NEED_DATA
    made.receive_data(b"\n")
    assert made.next_event() is HEART_BEAT
    assert made.next_event() is NEED_DATA


def test_line_ends_alone_are_heart_beats():
    made = decoder(V12)
    made.receive_data(b"\n\n\r")
    assert made.next_event() is HEART_BEAT
    assert made.next_event() is NEED_DATA
    made.receive_data(b"\nSEND\n\n\0")
    assert made.next_event() is HEART_BEAT
    assert made.next_event() == F("SEND")


def test_empty_data_changes_nothing():
    made = decoder(V12)
    made.receive_data(b"")
    assert made.next_event() is NEED_DATA


@pytest.mark.parametrize("with_length", [True, False])
def test_a_large_body_in_small_pieces_is_joined_once(with_length):
    body = b"x" * 300_000
    head = b"SEND\ncontent-length:300000\n\n" if with_length else b"SEND\n\n"
    data = head + body + b"\0SEND\n\n\0"
    made = decoder(V12)
    joins = 0
    events = []
    for position in range(0, len(data), 1000):
        made.receive_data(data[position : position + 1000])
        before = len(made._pieces)
        events += list(made.events())
        joins += len(made._pieces) < before
    assert [(e.command, len(e.body)) for e in events] == [("SEND", 300_000), ("SEND", 0)]
    assert joins <= 2  # once when the body is complete, once for what followed


# ------------------------------------------------------------------------------------- properties

names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=12)
values = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
reserved = {"content-length", ""}


@given(
    command=st.sampled_from(sorted(CLIENT_COMMANDS | SERVER_COMMANDS)),
    headers=st.dictionaries(names.filter(lambda n: n not in reserved), values, max_size=6),
    body=st.binary(max_size=40),
    version=st.sampled_from([V11, V12]),
    cut=st.integers(1, 60),
)
@settings(deadline=None)
def test_every_frame_survives_the_wire(command, headers, body, version, cut):
    if command in ("CONNECT", "STOMP", "CONNECTED"):  # those are not escaped
        headers = {n.translate({10: 32, 13: 32, 58: 32, 92: 32}): v.translate({10: 32, 13: 32, 92: 32})
                   for n, v in headers.items()}  # fmt: skip
    elif version is V11:  # 1.1 cannot tell a CR at the end of a line from a line end
        headers = {n.replace("\r", ""): v.replace("\r", "") for n, v in headers.items()}
        headers.pop("", None)
    frame = Frame(command, headers, body)
    data = encode(frame, version)
    made = decoder(version, commands=CLIENT_COMMANDS | SERVER_COMMANDS)
    got = []
    for position in range(0, len(data), cut):
        made.receive_data(data[position : position + cut])
        got += list(made.events())
    assert len(got) == 1
    if isinstance(got[0], AckRun):
        assert frame == F("ACK", id=b"-".join(got[0].ids[0]).decode())
        return
    received = dict(got[0].headers)
    received.pop("content-length", None)
    assert (got[0].command, received, got[0].body) == (command, headers, body)
    assert list(received) == list(headers)


pieces = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([
        b"SEND\n", b"ACK\nid:1-2\n\n\0", b"CONNECT\n", b"a:b\n", b"\n\n", b"\r\n", b"\0", b"\r",
        b"content-length:5\n", b"\\c", b"a\\t:b\n", b":\n", b"MESSAGE\n\n\0", b"\xff", b"DISCONNECT\n\n\0",
    ]),
)  # fmt: skip


@given(
    data=st.lists(pieces, max_size=12).map(b"".join),
    version=st.sampled_from([None, V10, V11, V12]),
    cuts=st.lists(st.integers(1, 9), max_size=20),
)
@settings(deadline=None, max_examples=examples(300))
def test_any_bytes_parse_or_raise_the_protocol_error(data, version, cuts):
    whole = decoder(version, SMALL)
    cut_up = decoder(version, SMALL)

    def run(made, chunks):
        events = []
        try:
            for chunk in chunks:
                made.receive_data(chunk)
                for event in made.events():
                    events += event.ids if isinstance(event, AckRun) else [event]
        except PeerProtocolError:
            events.append("error")
        return events

    position = 0
    chunks = []
    for size in cuts:
        chunks.append(data[position : position + size])
        position += size
    chunks.append(data[position:])
    assert run(whole, [data]) == run(cut_up, chunks)


def test_what_was_read_step_by_step_is_let_go_of() -> None:
    """Each read ends with a frame, and the consumer stops behind it, as at the end of a slice."""
    decoder = Decoder()
    frame = b"SEND\ndestination:/queue/a\n\n" + b"x" * 10_000 + b"\0"
    decoder.receive_data(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    assert isinstance(decoder.next_event(), Frame)
    decoder.version = Version.V1_2
    tracemalloc.start()
    try:
        for _ in range(500):
            decoder.receive_data(frame)
            for found in decoder.events():
                assert isinstance(found, Frame)
                break
        assert tracemalloc.get_traced_memory()[1] < 100 * len(frame)
    finally:
        tracemalloc.stop()
