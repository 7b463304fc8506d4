"""Messages are small, immutable, and can be read back after fields were added."""

import sys
from collections.abc import Mapping
from typing import Any

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
    assert not gc.is_tracked(StoredMessage.of(1, TYPICAL))


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
    bare = msgspec.structs.replace(TYPICAL, headers=())
    assert memory_bytes(bare) == 256 + MESSAGE_OVERHEAD_BYTES
    assert taken(bare) < memory_bytes(bare) < taken(bare) * 1.5


@pytest.mark.parametrize("text", ["plain", "\N{SNOWMAN}", "\N{PILE OF POO}", "\udc80", ""])
def test_a_text_counts_the_same_before_and_after_somebody_encoded_it(text: str) -> None:
    fresh = "".join(list(text))
    before = memory_bytes(Message("queue://a", b"", ((fresh, fresh),)))
    if text != "\udc80":
        msgspec.msgpack.encode(text)  # which keeps UTF-8 with the string
    assert memory_bytes(Message("queue://a", b"", ((text, text),))) == before


def taken(message: Message) -> int:
    """What *message* takes, object by object, with its place in a list."""
    values = [getattr(message, name) for name in message.__struct_fields__]
    strings = [value for value in values if isinstance(value, str | bytes) and value]
    strings += [text for pair in message.headers for text in pair]
    size = sys.getsizeof(StoredMessage.of(1, message)) + sys.getsizeof(message)
    size += sum(map(sys.getsizeof, strings))
    return size + sys.getsizeof(message.headers) + sum(map(sys.getsizeof, message.headers))


@pytest.mark.parametrize(
    "changes",
    [
        {"headers": (("a" * 5_000, "b" * 10_000),) * 4},
        {"headers": (("a", "b" * 10_000 + "\N{SNOWMAN}"),)},
        {"headers": (("a", "b" * 10_000 + "\N{PILE OF POO}"),)},
        {"headers": tuple((f"name{n}", f"value{n}") for n in range(128))},
        {"destination": "topic://" + "d" * 60_000},
        {"original_name": "o" * 10_000, "reply_to": "queue://" + "r" * 10_000},
        {"correlation_data": b"c" * 60_000, "content_type": "t" * 60_000},
        {"client_id": "c" * 60_000},
    ],
)
def test_memory_counts_headers_and_names(changes: Mapping[str, Any]) -> None:
    message = msgspec.structs.replace(TYPICAL, **changes)
    assert taken(message) * 0.9 < memory_bytes(message) < taken(message) * 1.5
