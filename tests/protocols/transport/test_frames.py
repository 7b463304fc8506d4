"""WebSocket frames: cases as data, each whole, byte by byte and cut in two at every place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from tidegate_protocols.transport import _frames as frames
from tidegate_protocols.transport._frames import FrameDecoder, WebSocketError

MASK = b"\x12\x34\x56\x78"


def masked(first: int, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """A client's frame; *size*: what its header says, when that is not the truth."""
    size = len(payload) if size is None else size
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65_536:
        head = bytes((first, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, 0xFF)) + size.to_bytes(8, "big")
    return head + MASK + bytes(b ^ MASK[i % 4] for i, b in enumerate(payload))


def decoder(limit: int = 1000, *, text_allowed: bool = True) -> FrameDecoder:
    return FrameDecoder(limit, text_allowed=text_allowed)


def cut(data: bytes):
    """The same bytes: whole, one at a time, and in two pieces at every place."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    yield from ([data[:i], data[i:]] for i in range(1, len(data)))


EURO = "€".encode()

# bytes, payload, kind text, ping, close
GOOD = [
    (masked(0x82, b"SEND"), b"SEND", False, None, None),
    (masked(0x81, b"SEND"), b"SEND", True, None, None),
    (masked(0x82), b"", False, None, None),
    (masked(0x82, b"x" * 125), b"x" * 125, False, None, None),
    (masked(0x82, b"x" * 126), b"x" * 126, False, None, None),  # 16-bit length
    (b"\x82\xff" + (3).to_bytes(8, "big") + MASK + masked(0x82, b"abc")[6:], b"abc", False, None, None),
    (masked(0x82, b"a") + masked(0x81, b"b"), b"ab", True, None, None),
    (masked(0x02, b"a") + masked(0x00, b"b") + masked(0x80, b"c"), b"abc", False, None, None),
    (masked(0x02, b"a") + masked(0x89, b"hi") + masked(0x80, b"c"), b"ac", False, b"hi", None),  # 5.4
    (masked(0x81, EURO), EURO, True, None, None),
    (masked(0x01, EURO[:1]) + masked(0x00, EURO[1:2]) + masked(0x80, EURO[2:]), EURO, True, None, None),
    (masked(0x01, EURO) + masked(0x80), EURO, True, None, None),
    (masked(0x81, b"a" + EURO) + masked(0x81, b"b"), b"a" + EURO + b"b", True, None, None),
    (masked(0x82, b"\xff\x00\xfe"), b"\xff\x00\xfe", False, None, None),
    (masked(0x89, b"1") + masked(0x89, b"2"), b"", False, b"2", None),  # 5.5.3: the last one
    (masked(0x8A, b"unasked"), b"", False, None, None),  # 5.5.3
    (masked(0x88), b"", False, None, (1005, "")),
    (masked(0x82, b"a") + masked(0x88, b"\x03\xe8bye"), b"a", False, None, (1000, "bye")),
    (masked(0x88, b"\x0f\xa0"), b"", False, None, (4000, "")),
    (masked(0x88, b"\x03\xe8") + b"\x00rubbish", b"", False, None, (1000, "")),
]  # fmt: skip


@pytest.mark.parametrize("case", GOOD, ids=range(len(GOOD)))
def test_frames_give_their_payload_however_they_are_cut(case):
    data, payload, is_text, ping, close = case
    for pieces in cut(data):
        subject = decoder()
        assert b"".join(map(subject.receive_data, pieces)) == payload
        assert (subject.is_text, subject.ping, subject.close) == (is_text, ping, close)


# bytes, close code, clause of RFC 6455
BAD = [
    (masked(0xC2, b"x"), 1002, "5.2 RSV1 without an extension"),
    (masked(0x92, b"x"), 1002, "5.2 RSV3"),
    (b"\x82\x01x", 1002, "5.1 not masked"),
    (b"\x88\x00", 1002, "5.1 not masked, control"),
    (masked(0x83, b"x"), 1002, "5.2 reserved data opcode"),
    (masked(0x8B, b"x"), 1002, "5.2 reserved control opcode"),
    (masked(0x80, b"x"), 1002, "5.4 continuation of nothing"),
    (masked(0x82, b"x") + masked(0x80, b"x"), 1002, "5.4 continuation of a finished message"),
    (masked(0x02, b"x") + masked(0x82, b"x"), 1002, "5.4 interleaved messages"),
    (masked(0x09, b"x"), 1002, "5.5 fragmented control"),
    (masked(0x89, b"x" * 126), 1002, "5.5 control longer than 125"),
    (masked(0x88, b"\x03"), 1002, "5.5.1 half a code"),
    (masked(0x88, b"\x03\xed"), 1002, "7.4.1 1005 on the wire"),
    (masked(0x88, b"\x03\xe8\xff"), 1007, "5.5.1 reason not UTF-8"),
    (masked(0x88, b"\x00\x01"), 1002, "7.4.2 code below 1000"),
    (masked(0x81, b"\xff"), 1007, "8.1 text not UTF-8"),
    (masked(0x81, EURO[:2]), 1007, "8.1 text ends inside a character"),
    (masked(0x01, EURO[:2]) + masked(0x80), 1007, "8.1 across fragments"),
    (masked(0x01, EURO[:1]) + masked(0x80, b"x"), 1007, "8.1 across fragments"),
    (masked(0x82, size=1001), 1009, "10.4 one frame"),
    (masked(0x82, size=1 << 63), 1009, "10.4 and 5.2 the length's first bit"),
    (masked(0x02, b"x" * 600) + masked(0x80, b"", size=401), 1009, "10.4 fragments together"),
]


@pytest.mark.parametrize(("data", "code", "clause"), BAD, ids=[clause for _, _, clause in BAD])
def test_violations_have_their_close_code_however_they_are_cut(data, code, clause):
    for pieces in cut(data):
        subject = decoder()
        with pytest.raises(WebSocketError) as raised:
            list(map(subject.receive_data, pieces))
        assert raised.value.code == code
        assert str(code) in str(raised.value)


def test_a_message_of_the_limit_is_taken_and_the_count_starts_anew():
    subject = decoder(10)
    data = masked(0x02, b"x" * 6) + masked(0x80, b"x" * 4)
    assert subject.receive_data(data * 3) == b"x" * 30


def test_text_is_refused_where_only_binary_is_allowed():
    subject = decoder(text_allowed=False)
    assert subject.receive_data(masked(0x82, b"x")) == b"x"
    with pytest.raises(WebSocketError, match="only binary") as raised:
        subject.receive_data(masked(0x81, b"x"))
    assert raised.value.code == 1003


def test_a_message_is_passed_on_while_it_comes_and_little_is_held():
    subject = decoder(1 << 40)
    subject.receive_data(masked(0x82, size=1 << 39))
    for _ in range(10):
        assert len(subject.receive_data(b"x" * 10_007)) == 10_007
        assert len(subject._head) == 0
    subject = decoder()
    for byte in masked(0x89, b"x" * 125)[:-1]:
        subject.receive_data(bytes((byte,)))
    assert len(subject._head) == 130


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_both_ways_to_mask_agree(data, mask):
    assert frames.apply_mask(data, mask) == frames.mask_slowly(data, mask)
    assert frames.mask_slowly(frames.mask_slowly(data, mask), mask) == data


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8))
def test_any_bytes_are_read_or_refused_with_a_close_code(pieces):
    subject = decoder()
    code = 0
    try:
        list(map(subject.receive_data, pieces))
    except WebSocketError as error:
        code = error.code
    assert code in (0, 1002, 1007, 1009)


@given(
    st.lists(st.tuples(st.sampled_from([Opcode.TEXT, Opcode.BINARY]), st.text(max_size=300)), max_size=6),
    st.integers(1, 50),
)  # fmt: skip
def test_what_another_implementation_writes_is_read_in_pieces_of_any_size(messages, size):
    data = b"".join(Frame(op, text.encode()).serialize(mask=True) for op, text in messages)
    subject = decoder(100_000)
    got = b"".join(subject.receive_data(data[i : i + size]) for i in range(0, len(data), size))
    assert got == b"".join(text.encode() for _, text in messages)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_written_frames_are_as_another_implementation_writes_them(size):
    payload = b"x" * size
    expected = Frame(Opcode.BINARY, payload).serialize(mask=False)
    assert frames.encode_frame(frames.BINARY, payload) == expected


def test_close_frames_have_code_and_a_reason_that_fits():
    assert frames.encode_close(1000) == b"\x88\x02\x03\xe8"
    assert frames.encode_close(1005) == b"\x88\x00"  # never on the wire
    long = frames.encode_close(1002, "€" * 100)
    assert long[1] == 2 + 123
    assert long[4:].decode() == "€" * 41
