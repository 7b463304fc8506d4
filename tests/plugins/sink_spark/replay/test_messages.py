"""From messages to rows and back: every field is as it was sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_table import START_US, pa, row

from tidegate.spi import AcknowledgedMessage
from tidegate.spi.replay import ReplayedMessage
from tidegate_sink_spark.replay.messages import PREFIX, Maker, correlation_data
from tidegate_sink_spark.staging import arrow

LATER = START_US * 2


def back(*rows: AcknowledgedMessage, now: int = START_US, **maker: Any) -> list[ReplayedMessage]:
    table = pa.Table.from_batches([arrow.build_batch(rows, "g", "e")])
    return Maker("orders", "r1", **maker).make(0, table, now)


def added(message: ReplayedMessage) -> dict[str, str]:
    return {name: value for name, value in message.headers if name.startswith(PREFIX)}


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_name = _text.filter(lambda name: not name.startswith(PREFIX))


@given(
    body=st.binary(max_size=40),
    headers=st.lists(st.tuples(_name, _text), max_size=5).map(tuple),
    correlation=st.none() | st.binary(min_size=1, max_size=8) | _text.map(str.encode),
    reply_to=st.sampled_from(["", "queue://answers", "topic://a.b"]),
    content_type=st.none() | st.text("abc/", min_size=1, max_size=5),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    expires_at=st.sampled_from([0, LATER]),
    protocol=st.sampled_from(["", "stomp", "mqtt"]),
    original_name=st.sampled_from(["", "/queue/a.b"]),
    payload_format=st.sampled_from([None, 0, 1]),
    destination=st.sampled_from(["queue://a", "topic://a.b"]),
)
@settings(max_examples=60)
def test_every_field_comes_back(
    body: bytes,
    headers: tuple[tuple[str, str], ...],
    correlation: bytes | None,
    reply_to: str,
    content_type: str | None,
    priority: int,
    persistent: bool,
    qos: int,
    retain: bool,
    expires_at: int,
    protocol: str,
    original_name: str,
    payload_format: int | None,
    destination: str,
) -> None:
    (found,) = back(
        row(
            7,
            destination,
            body=body,
            headers=headers,
            correlation_data=correlation,
            reply_to=reply_to,
            content_type=content_type,
            priority=priority,
            persistent=persistent,
            qos=qos,
            retain=retain,
            expires_at=expires_at,
            protocol=protocol,
            original_name=original_name,
            payload_format=payload_format,
        )
    )
    assert found.position == "0:7"
    assert (found.body, found.destination, found.protocol) == (body, destination, protocol)
    assert found.headers[: len(headers)] == headers
    assert set(added(found)) == {name for name, _ in found.headers[len(headers) :]}
    assert found.correlation_data == (correlation or None)
    assert found.reply_to == ("" if ("reply-to", reply_to) in headers else reply_to)
    assert found.content_type == content_type
    assert (found.priority, found.persistent, found.qos) == (priority, persistent, qos)
    assert found.expires_at == expires_at
    assert (found.original_name, found.payload_format) == (original_name, payload_format)


def test_headers_say_where_a_message_comes_from() -> None:
    (found,) = back(row(7, sequence=3))
    assert found.headers[0] == ("n", "7")
    assert added(found) == {
        "replayed-from": "orders",
        "replayed-by": "r1",
        "replayed-ack-seq": "7",
        "replayed-message-id": "e-3",
        "replayed-destination": "queue://a",
        "replayed-time": "2023-11-14T22:13:20.000000Z",
    }


def test_a_message_that_was_replayed_before_has_the_headers_of_now() -> None:
    old = (("replayed-by", "r0"), ("k", "v"), ("replayed-expires", "long ago"))
    (found,) = back(row(7, headers=old))
    assert found.headers[0] == ("k", "v")
    assert [value for name, value in found.headers if name == "replayed-by"] == ["r1"]
    assert "replayed-expires" not in added(found)


def test_another_destination_has_no_name_that_was_written_for_the_first() -> None:
    (found,) = back(row(7, original_name="/queue/written"), destination="topic://t")
    assert (found.destination, found.original_name) == ("topic://t", "")
    assert added(found)["replayed-destination"] == "queue://a"


def test_an_expiry_that_is_over_is_left_out_and_one_to_come_stays() -> None:
    past, coming = back(row(1, expires_at=START_US), row(2, expires_at=START_US + 1))
    assert past.expires_at == 0
    assert added(past)["replayed-expires"] == "2023-11-14T22:13:20.000000Z"
    assert coming.expires_at == START_US + 1
    assert "replayed-expires" not in added(coming)


def test_a_name_that_only_the_client_understands_is_carried_once() -> None:
    (found,) = back(row(1, headers=(("reply-to", "me"),)))
    assert (found.reply_to, found.headers[0]) == ("", ("reply-to", "me"))


@pytest.mark.parametrize("data", [b"base64:", b"base64:/w==", b"base64:!", b"\xff\xfe", b"x"])
def test_correlation_data_that_looks_like_base64_is_told_from_it(data: bytes) -> None:
    (found,) = back(row(1, correlation_data=data))
    assert found.correlation_data == data
    assert correlation_data("base64:!") == b"base64:!"  # of an older gateway


def test_a_table_of_an_older_gateway_has_what_it_has() -> None:
    table = pa.Table.from_batches([arrow.build_batch([row(1)], "g", "e")])
    table = table.select(["ack_seq", "destination", "headers", "body"])
    (found,) = Maker("t", "r").make(2, table, START_US)
    assert (found.position, found.priority, found.persistent, found.qos) == ("2:1", 4, True, 2)
    assert added(found)["replayed-message-id"] == ""
