"""What the gateway writes is cut into one frame a WebSocket message, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import Message, StoredMessage
from tidegate_protocols.stomp import (
    MessageEncoder,
    Version,
    encode_connected,
    encode_error,
    encode_receipts,
)
from tidegate_protocols.stomp._split import PROFILE, SUBPROTOCOLS, split


def message(body: bytes, version: Version, headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    stored = StoredMessage.of(
        7, Message(destination="queue://q", body=body, received_at=1, headers=headers)
    )
    return MessageEncoder(version, "1", "id-", "ack-").encode([stored])


TRICKY = b"\0\n\nMESSAGE\ncontent-length:999\n\n\0"
FRAMES = [
    b"\n",
    encode_connected(Version.V1_2, session="s", server="t/1", heart_beat=(1, 2)),
    encode_connected(Version.V1_0, session="s", server="t/1", heart_beat=(1, 2)),
    encode_receipts(["r\n1:\\"], Version.V1_2),
    encode_error("no", "the whole story\n\n", Version.V1_2, receipt="r"),
    message(b"", Version.V1_0),
    message(TRICKY, Version.V1_1),
    message(TRICKY, Version.V1_2, (("a", "b\n\ncontent-length:3\n"), ("b\ncontent-length", "4"))),
    message(TRICKY, Version.V1_0, (("a", "b\n\ncontent-length:3\n"), ("b", "4"))),
    message(b"x" * 100_000, Version.V1_2),
]


@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_one_frame_stays_one_message_and_is_not_copied(frame):
    assert list(split(frame)) == [frame]
    if frame != b"\n":
        assert split(frame)[0] is frame


@given(st.lists(st.sampled_from(FRAMES[1:]), min_size=2, max_size=6))
def test_frames_in_one_write_become_one_message_each(frames):
    assert list(split(b"".join(frames))) == frames


def test_receipts_that_leave_together_are_cut_apart():
    assert len(split(encode_receipts(["1", "2", "3"], Version.V1_2))) == 3


def test_a_heart_beat_goes_with_the_frame_after_it_or_alone():
    assert list(split(b"\n\n" + FRAMES[3] + b"\n")) == [b"\n\n" + FRAMES[3], b"\n"]


def test_the_subprotocols_are_the_registered_names_newest_first():
    assert PROFILE.subprotocols == ("v12.stomp", "v11.stomp", "v10.stomp")
    assert [SUBPROTOCOLS[name].value for name in PROFILE.subprotocols] == ["1.2", "1.1", "1.0"]
    assert PROFILE.text_allowed
    assert PROFILE.split is split
