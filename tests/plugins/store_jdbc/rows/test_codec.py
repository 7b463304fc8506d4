"""Values in columns: complete in one, readable in the others, open for fields to come."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import (
    AddDestination,
    CorruptRecordError,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    RecoveredDestination,
    Session,
    Subscription,
)
from tidegate_store_jdbc import STATEMENTS
from tidegate_store_jdbc.rows import codec
from tidegate_store_jdbc.rows.codec import Columns

TYPES = {"container_name": "TEXT", "string_id": "TEXT", "msg_id": "TEXT"}
COLUMNS = Columns(TYPES)
NAMES = STATEMENTS["add_message_statement"].parameters

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages = st.builds(
    Message,
    destination=texts,
    body=st.binary(max_size=50),
    headers=st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
    received_at=st.integers(0, 2**63),
    expires_at=st.integers(0, 2**64 - 1),
    priority=st.integers(0, 9),
    persistent=st.booleans(),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    protocol=st.sampled_from(["", "stomp", "mqtt"]),
    client_id=texts,
    original_name=texts,
    content_type=texts,
    correlation_data=st.binary(max_size=5),
    reply_to=texts,
)


def column(row: Any, name: str) -> Any:
    return row[NAMES.index(name)]


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    row = COLUMNS.message(5, message, 1)
    assert len(row) == len(NAMES)
    assert codec.message(column(row, "body"), column(row, "message")) == message
    assert "\0" not in "".join(value for value in row if isinstance(value, str))
    assert all(value < 2**63 for value in row if isinstance(value, int))
    rest = COLUMNS.retained(message)
    assert codec.message(rest[3], rest[4]) == message


def test_columns_say_what_people_look_for() -> None:
    message = Message(
        "queue://orders",
        b"body",
        (("color", "red"), ("color", "blue"), ("n", "ü")),
        received_at=7,
        expires_at=8,
        priority=9,
        protocol="stomp",
        client_id="c",
        content_type="text/plain",
        correlation_data=b"k",
        reply_to="queue://answers",
    )
    row = dict(zip(NAMES, COLUMNS.message(3, message, 2), strict=True))
    headers = row.pop("headers")
    assert isinstance(headers, str)
    assert json.loads(headers) == {"color": "red", "n": "ü"}
    row.pop("message")
    assert row == {
        "sequence": 3,
        "destination": "queue://orders",
        "priority": 9,
        "received_at": 7,
        "expires_at": 8,
        "client_id": "c",
        "protocol": "stomp",
        "content_type": "text/plain",
        "reply_to": "queue://answers",
        "correlation_data": b"k",
        "lists": 2,
        "body_bytes": 4,
        "body": b"body",
    }
    assert column(COLUMNS.message(3, Message("queue://q", b""), 1), "headers") is None


def test_limited_columns_are_cut_and_the_value_stays_whole() -> None:
    columns = Columns(
        {"container_name": "varchar (12)", "string_id": "NVARCHAR2(3)", "msg_id": "CHAR(2)"}
    )
    message = Message("queue://orders.long", b"", client_id="client")
    row = columns.message(1, message, 1)
    assert column(row, "destination") == "queue://orde"
    assert column(row, "client_id") == "cli"
    assert codec.message(b"", column(row, "message")) == message


def test_fields_to_come_need_no_other_columns() -> None:
    values = [*msgspec.structs.astuple(Message("queue://q", b"", client_id="c")), "new", 5]
    later = msgspec.msgpack.encode(values)
    found = codec.message(b"body", later)
    assert (found.client_id, found.body) == ("c", b"body")
    older = msgspec.msgpack.encode(["queue://q", b""])
    assert codec.message(b"x", older) == Message("queue://q", b"x")


def test_bindings_come_back_as_they_were() -> None:
    subscription = Subscription(
        1, "c\0", "n", "topic://" + "t" * 5000, True, 1, True, "mqtt", "g", {"k": "v"}, "a > 5"
    )
    session = Session("c", 0xFFFF_FFFF, 5, {"k": "v"})
    inflight = InflightRecord("c", InflightDirection.OUT, 65535, InflightState.RELEASED, "s", 9)
    assert codec.decoded(Subscription, COLUMNS.subscription(subscription)[-1], "t") == subscription
    assert codec.decoded(Session, COLUMNS.session(session)[-1], "t") == session
    assert codec.decoded(InflightRecord, COLUMNS.inflight(inflight)[-1], "t") == inflight
    assert COLUMNS.inflight(inflight)[:3] == codec.inflight_key("c", InflightDirection.OUT, 65535)
    row = COLUMNS.destination(AddDestination("topic://ü\0", 0, "ann\0"))
    assert row[1:4] == ("topic://ü\ufffd", 0, "ann\ufffd")
    found = codec.decoded(RecoveredDestination, row[-1], "t")
    assert found == RecoveredDestination("topic://ü\0", 0, "ann\0")


def test_damaged_values_are_reported_with_their_place() -> None:
    with pytest.raises(CorruptRecordError, match="message 7"):
        codec.message(b"", b"\xc1", 7)
    with pytest.raises(CorruptRecordError, match="session table"):
        codec.decoded(Session, b"\x01", "session table")
    with pytest.raises(CorruptRecordError, match="destination table"):
        codec.decoded(RecoveredDestination, b"\xff", "destination table")


def test_keys_have_one_length_for_names_of_any_length() -> None:
    keys = {codec.key(name) for name in ("", "a", "b" * 70_000, "\0", "ü")}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {16}
