"""What the specifications ask of frames: encoding, bodies, limits, repeated headers, content and receipts.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest
from stomp_conformance import ALL, SINCE_1_1, ack, deliver, sent

from tidegate_protocols.stomp import Decoder, Frame, StompOptions, Version, encode

# ---------------------------------------------------------------------------------- STOMP Frames


@pytest.mark.clause("stomp-1.0,1.1,1.2/frames/structure")
@ALL
def test_a_frame_is_command_headers_blank_line_body_nul(connected):
    connected.feed("SEND\ndestination:/queue/a\nmine:x\n\nbody\0")
    (message,) = sent(connected)
    assert (message.destination, message.headers, message.body) == (
        "queue://a",
        (("mine", "x"),),
        b"body",
    )


@pytest.mark.clause("stomp-1.0,1.1/frames/lf")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_only_lf_ends_a_line_before_1_2(connected):
    connected.feed("SEND\ndestination:/queue/a\nmine:x\r\n\n\0")
    (message,) = sent(connected)
    assert message.headers == (("mine", "x\r"),)


@pytest.mark.clause("stomp-1.2/frames/eol")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lf_with_or_without_cr_ends_a_line_in_1_2(harness, end):
    harness.connect("1.2")
    harness.feed(f"SEND{end}destination:/queue/a{end}mine:x{end}{end}body\0{end}")
    (message,) = sent(harness)
    assert (message.headers, message.body) == ((("mine", "x"),), b"body")


@pytest.mark.clause("stomp-1.0,1.1,1.2/frames/between")
@ALL
def test_line_ends_between_frames_mean_nothing(connected):
    connected.feed("\n\nSEND\ndestination:/queue/a\n\n\0\n\n\nSEND\ndestination:/queue/b\n\n\0\n")
    assert [m.destination for m in sent(connected)] == ["queue://a", "queue://b"]
    assert connected.frames() == []


@pytest.mark.clause("stomp-1.1,1.2/frames/case")
@SINCE_1_1
def test_header_names_are_case_sensitive(connected):
    connected.feed("SEND\nDestination:/queue/b\ndestination:/queue/a\n\n\0")
    (message,) = sent(connected)
    assert (message.destination, message.headers) == (
        "queue://a",
        (("Destination", "/queue/b"),),
    )


@pytest.mark.clause("stomp-1.1,1.2/frames/case")
@SINCE_1_1
def test_commands_are_case_sensitive(connected):
    assert "unknown command" in connected.refusal("send\ndestination:/queue/a\n\n\0")


# -------------------------------------------------------------------------------- Value Encoding


@pytest.mark.clause("stomp-1.1,1.2/encoding/utf-8", "stomp-1.1,1.2/content-type/utf-8")
@SINCE_1_1
def test_headers_are_utf_8_both_ways(connected):
    connected.subscribe()
    connected.feed("SEND\ndestination:/queue/a\nnäme:žluť €\n\n\0")
    (message,) = sent(connected)
    assert message.headers == (("näme", "žluť €"),)
    assert "näme:žluť €\n".encode() in deliver(connected, message)


@pytest.mark.clause("stomp-1.1,1.2/encoding/utf-8", "stomp-1.1,1.2/content-type/utf-8")
@SINCE_1_1
def test_headers_that_are_not_utf_8_are_refused(connected):
    assert "not UTF-8" in connected.refusal(b"SEND\ndestination:/queue/a\nx:\xff\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/encoding/decode", "stomp-1.1,1.2/encoding/encode")
@pytest.mark.parametrize(
    ("version", "escaped", "value"),
    [("1.1", "a\\nb\\cc\\\\d", "a\nb:c\\d"), ("1.2", "a\\nb\\cc\\\\d\\re", "a\nb:c\\d\re")],
)
def test_escapes_are_decoded_and_encoded(connected, escaped, value):
    connected.subscribe()
    connected.feed(f"SEND\ndestination:/queue/a\n{escaped}:{escaped}\n\n\0")
    (message,) = sent(connected)
    assert message.headers == ((value, value),)
    assert f"\n{escaped}:{escaped}\n".encode() in deliver(connected, message)


@pytest.mark.clause("stomp-1.1,1.2/encoding/undefined")
@pytest.mark.parametrize(
    ("version", "escape"),
    [("1.1", "\\r"), ("1.1", "\\t"), ("1.2", "\\t"), ("1.2", "\\N"), ("1.2", "x\\")],
)
def test_undefined_escapes_are_fatal(connected, escape):
    assert "undefined escape" in connected.refusal(f"SEND\ndestination:/queue/a\nx:{escape}\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/encoding/connect")
@SINCE_1_1
def test_connect_is_not_unescaped(harness, version):
    harness.feed(f"CONNECT\naccept-version:{version}\nlogin:a\\cb:c\\t\n\n\0")
    (request,) = harness.broker.requests
    assert request.username == "a\\cb:c\\t"


@pytest.mark.clause("stomp-1.1,1.2/encoding/connect")
@SINCE_1_1
def test_connected_is_not_escaped(version):
    frame = Frame("CONNECTED", {"server": "a:b\\c"})
    assert encode(frame, Version(version)) == b"CONNECTED\nserver:a:b\\c\n\n\0"


@pytest.mark.clause("stomp-1.1,1.2/encoding/no-trim")
@SINCE_1_1
def test_padding_is_neither_removed_nor_added(connected):
    connected.subscribe()
    connected.feed("SEND\ndestination:/queue/a\n mine :  x  \n\n\0")
    (message,) = sent(connected)
    assert message.headers == ((" mine ", "  x  "),)
    assert b"\n mine :  x  \n" in deliver(connected, message)


# ------------------------------------------------------------------------------------------ Body


@pytest.mark.clause("stomp-1.1,1.2/body/with")
@SINCE_1_1
def test_send_message_and_error_have_bodies(connected):
    connected.subscribe()
    connected.feed("SEND\ndestination:/queue/a\n\nbody\0")
    (message,) = sent(connected)
    assert deliver(connected, message).endswith(b"\n\nbody\0")
    connected.feed("SEND\n\n\0")
    assert connected.error().body


@pytest.mark.clause("stomp-1.1,1.2/body/without")
@SINCE_1_1
@pytest.mark.parametrize(
    "head",
    [
        "SUBSCRIBE\nid:2\ndestination:/queue/a\n",
        "UNSUBSCRIBE\nid:1\n",
        "BEGIN\ntransaction:t\n",
        "COMMIT\ntransaction:t\n",
        "ABORT\ntransaction:t\n",
        "ACK\nid:1-1\nmessage-id:st0re-1\nsubscription:1\n",
        "NACK\nid:1-1\nmessage-id:st0re-1\nsubscription:1\n",
        "DISCONNECT\n",
    ],
)
def test_no_other_frame_has_a_body(connected, head):
    connected.subscribe()
    connected.feed(f"{head}\nbody\0")
    command = head.partition("\n")[0]
    assert connected.error().headers["message"] == f"{command} must not have a body"
    assert connected.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.1,1.2/body/without")
@SINCE_1_1
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_connect_has_no_body(harness, version, command):
    assert (
        harness.refusal(f"{command}\naccept-version:{version}\n\nbody\0")
        == f"{command} must not have a body"
    )
    assert harness.broker.requests == []


@pytest.mark.clause("stomp-1.0/body/ignored")
def test_the_body_of_subscribe_is_ignored_in_1_0(harness):
    harness.connect("1.0")
    harness.feed("SUBSCRIBE\ndestination:/queue/a\n\nignored\0")
    assert [call[0] for call in harness.connection.take()] == ["subscribe"]


# ----------------------------------------------------------------------------------- Size Limits


@pytest.mark.clause("stomp-1.1,1.2/limits/may", "stomp-1.1,1.2/limits/error")
@SINCE_1_1
@pytest.mark.parametrize(
    ("option", "rest", "what"),
    [
        ({"header_count_max": 4}, "a:1\nb:2\nc:3\nd:4\n\n\0", "header count"),
        ({"header_line_max": 40}, "a:" + "x" * 39 + "\n\n\0", "header line"),
        ({"headers_max": 90}, "a:" + "x" * 80 + "\n\n\0", "header block"),
        ({"body_max": 10}, "\n" + "x" * 11 + "\0", "body"),
        ({"body_max": 10}, "content-length:11\n\n", "body"),
    ],
)
def test_what_is_beyond_a_limit_is_an_error(make_harness, version, option, rest, what):
    harness = make_harness(StompOptions(**option))
    harness.connect(version)
    harness.feed(f"SEND\ndestination:/queue/a\n{rest}")
    message = harness.error().headers["message"]
    assert what in message
    assert "limit" in message


# ------------------------------------------------------------------------ Repeated Header Entries


@pytest.mark.clause("stomp-1.1,1.2/repeated/first", "stomp-1.2/repeated/rest")
@SINCE_1_1
def test_the_first_of_repeated_headers_counts(connected):
    connected.feed("SEND\ndestination:/queue/a\npriority:7\ndestination:/queue/b\npriority:1\n\n\0")
    (message,) = sent(connected)
    assert (message.destination, message.priority) == ("queue://a", 7)


@pytest.mark.clause("stomp-1.1,1.2/repeated/update")
@SINCE_1_1
def test_repeated_headers_of_the_user_pass_in_order_behind_the_servers(connected, version):
    connected.subscribe()
    connected.feed("SEND\ndestination:/queue/a\nfoo:World\nfoo:Hello\n\n\0")
    (message,) = sent(connected)
    data = deliver(connected, message)
    assert b"\nfoo:World\nfoo:Hello\n\n" in data
    decoder = Decoder(commands=frozenset({"MESSAGE"}))
    decoder.version = Version(version)
    decoder.receive_data(data)
    (frame,) = decoder.events()
    assert isinstance(frame, Frame)
    assert frame.headers["foo"] == "World"


# ------------------------------------------------------------------------------ Standard Headers


@pytest.mark.clause(
    "stomp-1.1,1.2/content-length/nul",
    "stomp-1.0,1.1,1.2/content-length/read",
    "stomp-1.0,1.1,1.2/content-length/present",
)
@ALL
def test_a_body_with_nul_passes_by_its_length(connected):
    connected.subscribe()
    connected.feed(b"SEND\ndestination:/queue/a\ncontent-length:5\n\na\0b\0c\0")
    (message,) = sent(connected)
    assert message.body == b"a\0b\0c"
    data = deliver(connected, message)
    assert b"\ncontent-length:5\n" in data
    assert data.endswith(b"\n\na\0b\0c\0")


@pytest.mark.clause("stomp-1.0,1.1,1.2/content-length/terminator")
@ALL
def test_a_nul_must_follow_the_counted_body(connected):
    connected.feed("SEND\ndestination:/queue/a\ncontent-length:3\n\nabcd\0")
    assert "the body is not followed by NUL" in connected.error().body.decode()


@pytest.mark.clause("stomp-1.0/content-length/absent")
@ALL
def test_without_a_length_the_first_nul_ends_the_body(connected):
    connected.feed("SEND\ndestination:/queue/a\n\nab\0SEND\ndestination:/queue/b\n\ncd\0")
    assert [message.body for message in sent(connected)] == [b"ab", b"cd"]


@pytest.mark.clause(
    "stomp-1.1,1.2/content-type/mime",
    "stomp-1.1,1.2/content-type/charset",
    "stomp-1.1,1.2/content-type/present",
)
@SINCE_1_1
@pytest.mark.parametrize(
    "value", ["text/plain", "text/html;charset=utf-16", "application/xml;charset=utf-8"]
)
def test_the_content_type_is_passed_on(connected, value):
    connected.subscribe()
    connected.feed(f"SEND\ndestination:/queue/a\ncontent-type:{value}\n\nx\0")
    (message,) = sent(connected)
    assert message.content_type == value
    assert f"\ncontent-type:{value}\n".encode() in deliver(connected, message)


@pytest.mark.clause("stomp-1.1,1.2/content-type/blob")
@SINCE_1_1
def test_without_a_content_type_every_byte_passes(connected):
    connected.subscribe()
    body = bytes(range(256))
    connected.feed(b"SEND\ndestination:/queue/a\ncontent-length:256\n\n" + body + b"\0")
    (message,) = sent(connected)
    data = deliver(connected, message)
    assert b"content-type" not in data
    assert data.endswith(b"\n\n" + body + b"\0")


@pytest.mark.clause("stomp-1.0,1.1,1.2/receipt/any-frame", "stomp-1.0,1.1,1.2/receipt/id")
@ALL
@pytest.mark.parametrize(
    "head",
    [
        "SEND\ndestination:/queue/a\n",
        "SUBSCRIBE\nid:2\ndestination:/queue/a\n",
        "UNSUBSCRIBE\nid:1\n",
        "BEGIN\ntransaction:u\n",
        "COMMIT\ntransaction:t\n",
        "ABORT\ntransaction:t\n",
        "ACK\n",
        "NACK\n",
    ],
)
def test_every_frame_may_ask_for_a_receipt(connected, version, head):
    connected.subscribe("1", ack="client")
    (message,) = connected.deliver("1", 5)
    connected.feed("BEGIN\ntransaction:t\n\n\0")
    connected.connection.take()
    command = head.strip()
    if command == "NACK" and version == "1.0":
        connected.feed(ack(version, message, command, "receipt:r 1\n"))
        assert connected.error().headers["receipt-id"] == "r 1"  # 1.0 has no NACK
        return
    if command in ("ACK", "NACK"):
        connected.feed(ack(version, message, command, "receipt:r 1\n"))
    else:
        connected.feed(f"{head}receipt:r 1\n\n\0")
    tokens = [value for call in connected.connection.take() for value in call if value == "r 1"]
    assert tokens == ["r 1"], "the broker is to confirm it, once"
    connected.session.confirmed(tokens)
    (receipt,) = connected.frames()
    assert (receipt.command, receipt.headers) == ("RECEIPT", {"receipt-id": "r 1"})
