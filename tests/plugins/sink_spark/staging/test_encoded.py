"""A batch that is made of encoded messages is the one that is made of their rows, or none."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import AcknowledgedMessage, EncodedRows, Message, Outcome, encode_rows
from tidegate_sink_spark.staging import arrow
from tidegate_sink_spark.staging.encoded.batch import UNUSUAL, build_encoded
from tidegate_sink_spark.staging.reading import decoded

_LENGTHS = [0, 1, 31, 32, 255, 256, 65_535, 65_536]
_NUMBERS = [0, 1, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1]

texts = st.one_of(st.sampled_from(["", "a", "queue://a", "ü€😀"]), st.text(max_size=40))
times = st.one_of(st.sampled_from(_NUMBERS), st.integers(0, (1 << 63) - 1))
small = st.one_of(st.sampled_from([0, 4, 127, 128, 70_000]), st.integers(0, (1 << 31) - 1))
names = st.sampled_from(["kind", "n", "type", "JMSXGroupID", "reply-to", "", "ü"])
headers = st.lists(st.tuples(names, texts), max_size=6, unique_by=lambda pair: pair[0]).map(tuple)
messages = st.builds(
    Message,
    destination=texts,
    body=st.binary(max_size=40),
    headers=headers,
    received_at=times,
    expires_at=times,
    priority=small,
    persistent=st.booleans(),
    qos=small,
    retain=st.booleans(),
    protocol=texts,
    client_id=texts,
    original_name=texts,
    content_type=st.none() | texts,
    correlation_data=st.none() | st.binary(max_size=9) | st.just(b"base64:x"),
    reply_to=texts,
    retained=st.booleans(),
    payload_format=st.none() | st.integers(0, 1),
    owner=texts,
    protocol_version=texts,
    stored_at=times,
)


def rows_of(found: Sequence[Message], *, run: int = 3) -> list[AcknowledgedMessage]:
    """Rows of these messages, in runs of *run*."""
    rows: list[AcknowledgedMessage] = []
    for number, message in enumerate(found, 7):
        which = number // run
        rows.append(
            AcknowledgedMessage(
                number,
                number * 10,
                message,
                1,
                number % 3 * 1_700_000_000_000_000,
                which * 86_400_000_000,
                "consumer" if which % 2 else "",
                f"sub-{which}",
                "mqtt",
                "somebody",
                which + 1,
                Outcome.EXPIRED if which % 2 else Outcome.ACKNOWLEDGED,
                "",
            )
        )
    return rows


def check(runs: Sequence[EncodedRows]) -> None:
    """What is made of *runs* is what is made of their rows."""
    found = build_encoded(runs, "gw", "store-1")
    found.validate(full=True)
    rows = decoded(runs)
    assert rows.letters == []
    assert found.equals(arrow.build_batch(rows.rows, "gw", "store-1"))


@given(st.lists(messages, min_size=1, max_size=12))
def test_a_batch_of_encoded_messages_is_the_batch_of_their_rows(found: list[Message]) -> None:
    check(encode_rows(rows_of(found)))


@pytest.mark.parametrize("length", _LENGTHS)
def test_texts_and_bodies_of_any_length(length: int) -> None:
    """MessagePack has a form of its own for each of these lengths."""
    text = "x" * length
    some = Message(text, text.encode(), (("a", text), ("b", "y")), content_type=text)
    check(encode_rows(rows_of([some])))
    check(encode_rows(rows_of([some, Message("queue://a", b"z"), some, some])))


@pytest.mark.parametrize("number", _NUMBERS)
def test_numbers_of_any_size(number: int) -> None:
    check(encode_rows(rows_of([Message("queue://a", b"", received_at=number, stored_at=5)] * 2)))


@pytest.mark.parametrize(
    "message",
    [
        Message("queue://a", b"", (("a", "1"), ("a", "2"))),
        Message("queue://a", b"", tuple((str(n), "") for n in range(16))),
        Message("queue://a", b"", priority=1 << 31),
        Message("queue://a", b"", received_at=-1),
    ],
    ids=["a name twice", "many headers", "a large number", "a negative number"],
)
def test_what_is_unusual_is_left_to_who_looks_at_rows(message: Message) -> None:
    usual = Message("queue://a", b"", (("a", "1"),))
    with pytest.raises(UNUSUAL):
        build_encoded(encode_rows(rows_of([usual, message, usual])), "gw", "store-1")


@given(st.lists(messages, min_size=1, max_size=5), st.data())
def test_damaged_messages_never_become_other_rows(found: list[Message], data: Any) -> None:
    """Bytes are changed, added or lost: a row is what it is decoded to, or none."""
    runs: list[EncodedRows] = []
    for run in encode_rows(rows_of(found)):
        damaged = list(run.messages)
        number = data.draw(st.integers(0, len(damaged) - 1))
        whole = bytearray(damaged[number])
        at = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(["change", "cut", "add", "nil", "huge"])):
            case "change":
                whole[at] = data.draw(st.integers(0, 255))
            case "cut":
                del whole[at : at + data.draw(st.integers(1, 9))]
            case "add":
                whole[at:at] = data.draw(st.binary(min_size=1, max_size=9))
            case "nil":
                whole[at] = 0xC0
            case _:
                whole[at : at + 5] = b"\xdb\xff\xff\xff\xff"
        damaged[number] = bytes(whole)
        runs.append(msgspec.structs.replace(run, messages=damaged))
    try:
        batch = build_encoded(runs, "gw", "store-1")
    except UNUSUAL:
        return
    rows = decoded(runs)
    assert rows.letters == []
    assert batch.equals(arrow.build_batch(rows.rows, "gw", "store-1"))
