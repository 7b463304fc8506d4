"""Frames out, by version."""

from typing import Any

import pytest

from tidegate.spi import Message, StoredMessage
from tidegate_protocols.stomp import (
    SERVER_COMMANDS,
    Decoder,
    Frame,
    MessageEncoder,
    Version,
    encode,
    encode_connected,
    encode_error,
    encode_receipts,
)

V10, V11, V12 = Version.V1_0, Version.V1_1, Version.V1_2


def decoded(data, version=V12) -> Any:
    decoder = Decoder(commands=SERVER_COMMANDS)
    decoder.version = version
    decoder.receive_data(data)
    frames = list(decoder.events())
    assert decoder.buffered_bytes == 0
    return frames


def message(**fields):
    fields = {
        "destination": "queue://a",
        "body": b"hi",
        "received_at": 1_700_000_000_123_456,
    } | fields
    return Message(**fields)


class TestMessage:
    def test_of_1_2_has_exactly_these_bytes(self):
        encoder = MessageEncoder(V12, "s:1", "id-", "3-")
        stored = StoredMessage.of(42, message(headers=(("x", "y"), ("b", "c"))))
        assert encoder.encode([stored]) == (
            b"MESSAGE\nsubscription:s\\c1\nmessage-id:id-42\nack:3-42\ndestination:/queue/a\n"
            b"content-length:2\ntimestamp:1700000000123\nx:y\nb:c\n\nhi\0"
        )

    def test_without_subscription_id_or_ack_has_no_such_headers(self):
        encoder = MessageEncoder(V10, None, "id-", "")
        assert encoder.encode([StoredMessage.of(42, message())]) == (
            b"MESSAGE\nmessage-id:id-42\ndestination:/queue/a\n"
            b"content-length:2\ntimestamp:1700000000123\n\nhi\0"
        )

    def test_several_come_in_order_in_one_piece(self):
        encoder = MessageEncoder(V12, "1", "id-", "1-")
        data = encoder.encode(
            [
                StoredMessage.of(n, message(destination=f"topic://t.{n % 2}", body=b"\0" * n))
                for n in range(1, 5)
            ]
        )
        frames = decoded(data)
        assert [f.headers["ack"] for f in frames] == ["1-1", "1-2", "1-3", "1-4"]
        assert [f.headers["destination"] for f in frames] == ["/topic/t.1", "/topic/t.0"] * 2
        assert [f.body for f in frames] == [b"\0" * n for n in range(1, 5)]

    def test_mapped_fields_come_as_headers_before_the_users(self):
        encoder = MessageEncoder(V12, "1", "id-", "1-")
        stored = StoredMessage.of(
            7,
            message(
                content_type="text/plain; charset=utf-8",
                expires_at=1_800_000_000_000_000,
                priority=9,
                persistent=False,
                correlation_data="c:ü".encode(),
                reply_to="topic://answers",
                headers=(("mine", "1"),),
            ),
            delivery_count=1,
        )
        (frame,) = decoded(encoder.encode([stored]))
        assert list(frame.headers.items())[6:] == [
            ("redelivered", "true"),
            ("content-type", "text/plain; charset=utf-8"),
            ("expires", "1800000000000"),
            ("priority", "9"),
            ("persistent", "false"),
            ("correlation-id", "c:ü"),
            ("reply-to", "/topic/answers"),
            ("mine", "1"),
        ]

    @pytest.mark.parametrize(
        ("version", "data", "text"),
        [
            (V12, b"\xff\x00a", "/wBh"),
            (V12, b"\0", "AA=="),
            (V12, b"a\r\n:", None),
            (V11, b"a\n:", None),
            (V11, b"a\r", "YQ0="),
            (V10, b"a\n", "YQo="),
            (V10, b" a", "IGE="),
            (V10, b"a:b", None),
        ],
    )
    def test_correlation_data_that_a_header_cannot_carry_is_base64(self, version, data, text):
        stored = StoredMessage.of(1, message(correlation_data=data))
        (frame,) = decoded(MessageEncoder(version, "1", "id-", "").encode([stored]), version)
        assert frame.headers["correlation-id"] == (data.decode() if text is None else text)
        encoding = None if text is None else "base64"
        assert frame.headers.get("correlation-id-encoding") == encoding

    @pytest.mark.parametrize(
        ("fields", "pair"),
        [
            ({"retain": True}, ("retain", "true")),
            ({"retained": True}, ("retained", "true")),
            ({"payload_format": 1}, ("payload-format", "1")),
        ],
    )
    def test_what_only_some_messages_have_comes_as_a_header(self, fields, pair):
        encoder = MessageEncoder(V12, "1", "id-", "")
        for protocol in ("stomp", "mqtt"):
            stored = StoredMessage.of(1, message(protocol=protocol, **fields))
            (frame,) = decoded(encoder.encode([stored]))
            assert pair in frame.headers.items()

    def test_a_message_of_another_protocol_says_so_and_has_its_headers_escaped(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        headers = (("destination", "x"), ("a", "1"), ("a", "2"), ("timestamp", "6"))
        fields = {"protocol": "mqtt", "qos": 1, "original_name": "o", "headers": headers}
        (frame,) = decoded(encoder.encode([StoredMessage.of(1, message(**fields))]))
        assert frame.pairs[4:] == (
            ("origin-protocol", "mqtt"),
            ("origin-qos", "1"),
            ("origin-destination", "o"),
            ("user-destination", "x"),
            ("a", "1"),
            ("a", "2"),
            ("timestamp", "6"),
        )
        assert frame.headers["destination"] == "/queue/a"

    @pytest.mark.parametrize(
        ("qos", "persistent", "shown"),
        [(0, False, "0"), (1, False, "0"), (1, True, "1"), (2, True, "2"), (2, False, "2")],
    )
    def test_the_qos_of_origin_is_that_of_the_publish_also_from_a_queue(
        self, qos, persistent, shown
    ):
        encoder = MessageEncoder(V12, "1", "id-", "")
        fields = {"protocol": "mqtt", "qos": qos, "persistent": persistent}
        (frame,) = decoded(encoder.encode([StoredMessage.of(1, message(**fields))]))
        assert frame.headers["origin-qos"] == shown

    def test_a_stomp_message_keeps_its_headers_as_they_are(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        headers = (("user-destination", "x"), ("browser", "b"))
        stored = StoredMessage.of(1, message(protocol="stomp", headers=headers))
        (frame,) = decoded(encoder.encode([stored]))
        assert tuple(frame.headers.items())[5:] == headers

    def test_a_timestamp_of_the_producer_stands(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        headers = (("my-timestamp", "5"), ("timestamp", "6"))
        data = encoder.encode([StoredMessage.of(1, message(headers=headers))])
        assert data.count(b"\ntimestamp:") == 1
        assert decoded(data)[0].headers["timestamp"] == "6"

    def test_a_header_that_only_ends_in_timestamp_does_not_hide_ours(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        data = encoder.encode([StoredMessage.of(1, message(headers=(("my-timestamp", "5"),)))])
        assert decoded(data)[0].headers["timestamp"] == "1700000000123"

    def test_the_destination_is_written_as_the_stomp_producer_wrote_it(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        stomp = message(original_name="queue://a", protocol="stomp")
        mqtt = message(destination="topic://a.b", original_name="a/b", protocol="mqtt")
        frames = decoded(encoder.encode([StoredMessage.of(1, stomp), StoredMessage.of(2, mqtt)]))
        assert [f.headers["destination"] for f in frames] == ["queue://a", "/topic/a.b"]

    @pytest.mark.parametrize(
        ("version", "wire"),
        [
            (V12, b"a\\cb:x\\ny\\c\\\\\\rz \n"),
            (V11, b"a\\cb:x\\ny\\c\\\\\rz \n"),
            (V10, b"a b:x y:\\ z \n"),
        ],
    )
    def test_user_headers_are_escaped_by_version(self, version, wire):
        encoder = MessageEncoder(version, "1", "id-", "")
        data = encoder.encode([StoredMessage.of(1, message(headers=(("a:b", "x\ny:\\\rz\0"),)))])
        assert wire in data

    @pytest.mark.parametrize("value", ["a:b", "a\nb", "a\\b", "a\rb"])
    def test_each_special_character_alone_is_escaped(self, value):
        encoder = MessageEncoder(V12, "1", "id-", "")
        data = encoder.encode([StoredMessage.of(1, message(headers=(("h", value), ("i", "j"))))])
        assert decoded(data)[0].headers["h"] == value

    def test_any_number_of_destinations_is_written_right(self):
        encoder = MessageEncoder(V12, "1", "id-", "")
        stored = [StoredMessage.of(n, message(destination=f"topic://t.{n}")) for n in range(1, 700)]
        frames = decoded(encoder.encode(stored))
        assert [f.headers["destination"] for f in frames] == [
            f"/topic/t.{n}" for n in range(1, 700)
        ]
        assert len(encoder._destinations) <= 256


@pytest.mark.parametrize("version", [V11, V12])
@pytest.mark.parametrize(
    "receipts", [["1"], ["1", "2", "3"], ["a:b", "c"], ["a\nb"], ["a\\b", "x"], [""]]
)
def test_receipts_leave_in_order(receipts, version):
    frames = decoded(encode_receipts(receipts, version), version)
    assert [f.headers["receipt-id"] for f in frames] == receipts
    assert {f.command for f in frames} == {"RECEIPT"}


def test_one_receipt_has_exactly_these_bytes():
    assert encode_receipts(["77"], V12) == b"RECEIPT\nreceipt-id:77\n\n\0"


def test_connected_says_heart_beats_but_not_to_1_0():
    data = encode_connected(V12, session="s", server="tidegate/1", heart_beat=(1000, 2000))
    assert (
        data == b"CONNECTED\nversion:1.2\nsession:s\nserver:tidegate/1\nheart-beat:1000,2000\n\n\0"
    )
    data = encode_connected(V10, session="s", server="tidegate/1", heart_beat=(1000, 2000))
    assert data == b"CONNECTED\nversion:1.0\nsession:s\nserver:tidegate/1\n\n\0"


def test_connected_is_not_escaped():
    assert b"session:a:b\\\n" in encode_connected(
        V12, session="a:b\\", server="x", heart_beat=(0, 0)
    )


def test_error_has_message_body_and_receipt_id():
    data = encode_error("no: way", "the\nstory", V12, receipt="9", headers={"version": "1.2"})
    assert data == (
        b"ERROR\nmessage:no\\c way\ncontent-type:text/plain\nreceipt-id:9\nversion:1.2\n"
        b"content-length:10\n\nthe\nstory\n\0"
    )


def test_encode_keeps_a_content_length_that_is_there():
    assert (
        encode(Frame("SEND", {"content-length": "2"}, b"ab"), V12)
        == b"SEND\ncontent-length:2\n\nab\0"
    )


def test_encode_writes_repeated_headers():
    frame = Frame("MESSAGE", {"a": "1"}, b"", (("a", "1"), ("a", "2")))
    assert encode(frame, V12) == b"MESSAGE\na:1\na:2\n\n\0"
