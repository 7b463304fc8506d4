"""Messages are small, immutable, and can be read back after fields were added."""

import sys

import msgspec
import pytest

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, Message, StoredMessage, memory_bytes

TYPICAL = Message(
    "queue://orders",
    b"x" * 256,
    (("content-type", "application/json"), ("correlation-id", "1234567890")),
    1_700_000_000_000_000,
    protocol="stomp",
)


def test_a_message_is_immutable_and_invisible_to_the_garbage_collector() -> None:
    import gc

    with pytest.raises(AttributeError):
        TYPICAL.body = b"changed"  # type: ignore[misc]
    assert not gc.is_tracked(TYPICAL)
    assert not gc.is_tracked(StoredMessage(1, TYPICAL))


def test_what_was_stored_before_a_field_was_added_can_be_read() -> None:
    old = msgspec.msgpack.encode(["queue://a", b"body", [["k", "v"]]])
    assert msgspec.msgpack.decode(old, type=Message) == Message("queue://a", b"body", (("k", "v"),))
    newer = msgspec.msgpack.encode([*msgspec.structs.astuple(TYPICAL), "a field of the future"])
    assert msgspec.msgpack.decode(newer, type=Message) == TYPICAL


def test_its_encoding_has_no_field_names() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(TYPICAL))[:2] == [
        "queue://orders",
        b"x" * 256,
    ]


def test_memory_counts_the_body_and_what_is_around_it() -> None:
    assert memory_bytes(TYPICAL) == 256 + MESSAGE_OVERHEAD_BYTES
    around = sys.getsizeof(StoredMessage(1, TYPICAL)) + sys.getsizeof(TYPICAL)
    around += sys.getsizeof(TYPICAL.body) - len(TYPICAL.body) + sys.getsizeof(TYPICAL.headers)
    around += sum(sys.getsizeof(pair) + sum(map(sys.getsizeof, pair)) for pair in TYPICAL.headers)
    assert around / 2 < MESSAGE_OVERHEAD_BYTES < around * 2
