"""Where a body begins, from a header that is whole or not, and text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_protocols.mqtt import NO_PROPERTIES, Properties, Publish, encode
from tidegate_protocols.mqtt.codec.large_head import TextCheck, body_start, text_check

BODY = b"b" * 20_000
HEADER_BYTES = 4  # a first byte and a remaining length of three bytes


@pytest.mark.parametrize("level", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t", "t" * 300])
@pytest.mark.parametrize("filler", [0, 1, 127, 128, 16_384])
def test_the_beginning_of_a_body_is_found_and_never_put_too_far_back(level, qos, topic, filler):
    properties = Properties(user_properties=(("k", "v" * filler),)) if filler else NO_PROPERTIES
    if level < 5:
        properties = NO_PROPERTIES
    wire = encode(Publish(topic, BODY, qos, 7 if qos else 0, properties=properties), level)
    header = 4 if len(wire) < 2_097_156 and wire[3] < 128 else 5
    stop = len(wire) - len(BODY)
    for end in range(header, stop):
        found = body_start(wire[0], wire[:end], header, level)
        assert end < found <= stop, "more is needed, and not more than there is of it"
    for end in (stop, stop + 1, len(wire)):
        assert body_start(wire[0], wire[:end], header, level) == stop


@given(st.binary(max_size=40), st.integers(0, 15), st.sampled_from([3, 4, 5]))
def test_any_bytes_give_a_number_behind_the_beginning(data, flags, level):
    assert body_start(0x30 | flags, data, 0, level) >= 2


@given(st.binary(max_size=30), st.data())
def test_text_is_judged_alike_however_it_is_cut(data, draws):
    text = draws.draw(st.text(max_size=10)).encode() + data
    cuts = draws.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    check = TextCheck()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    verdicts = [
        check.accepts(piece, is_last=number == len(pieces) - 1)
        for number, piece in enumerate(pieces)
    ]
    try:
        text.decode()
    except UnicodeDecodeError:
        assert not all(verdicts)
    else:
        assert all(verdicts)


@pytest.mark.parametrize("tail", [b"x", b"", "é".encode()])
def test_a_character_that_is_cut_off_at_the_end_is_no_text(tail):
    check = TextCheck()
    assert check.accepts("ä".encode()[:1], is_last=False)
    assert check.accepts("ä".encode()[1:] + tail, is_last=False)
    assert not check.accepts(b"a\xc3", is_last=True)


@pytest.mark.parametrize(
    ("indicator", "is_wanted", "is_checked"),
    [(1, True, True), (1, False, False), (0, True, False), (None, True, False)],
)
def test_only_what_is_said_to_be_text_is_checked(indicator, is_wanted, is_checked):
    properties = Properties(payload_format_indicator=indicator)
    assert (text_check(properties, is_wanted=is_wanted) is not None) == is_checked
