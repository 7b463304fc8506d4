"""The specifications from top to bottom: what each sentence asks for, on a session's wire.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest

from tidegate.spi import AccessError, Message, RequestError, StoredMessage
from tidegate_protocols.stomp import Decoder, Frame, StompOptions, Version, encode

ALL = pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
SINCE_1_1 = pytest.mark.parametrize("version", ["1.1", "1.2"])


def ack(version, message, command="ACK", headers=""):
    """The ACK or NACK of a MESSAGE by the rules of the version."""
    named = message.headers
    if version == "1.2":
        lines = f"id:{named['ack']}\n"
    else:
        lines = f"message-id:{named['message-id']}\n"
        if version == "1.1":
            lines += f"subscription:{named['subscription']}\n"
    return f"{command}\n{lines}{headers}\n\0"


def sent(harness):
    """The messages published since the last look."""
    return [call[1] for call in harness.connection.take() if call[0] == "publish"]


def wire(harness):
    """The bytes written since the last look."""
    data = b"".join(harness.link.written)
    harness.link.written.clear()
    return data


def deliver(harness, message):
    """One MESSAGE frame, as bytes."""
    harness.session.deliver("1", [StoredMessage.of(7, message, 0)])
    return wire(harness)


# ---------------------------------------------------------------------------------- STOMP Frames


@pytest.mark.clause("stomp-1.0,1.1,1.2/frames/structure")
@ALL
def test_a_frame_is_command_headers_blank_line_body_nul(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\nmine:x\n\nbody\0")
    (message,) = sent(harness)
    assert (message.destination, message.headers, message.body) == (
        "queue://a",
        (("mine", "x"),),
        b"body",
    )


@pytest.mark.clause("stomp-1.0,1.1/frames/lf")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_only_lf_ends_a_line_before_1_2(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\nmine:x\r\n\n\0")
    (message,) = sent(harness)
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
def test_line_ends_between_frames_mean_nothing(harness, version):
    harness.connect(version)
    harness.feed("\n\nSEND\ndestination:/queue/a\n\n\0\n\n\nSEND\ndestination:/queue/b\n\n\0\n")
    assert [m.destination for m in sent(harness)] == ["queue://a", "queue://b"]
    assert harness.frames() == []


@pytest.mark.clause("stomp-1.1,1.2/frames/case")
@SINCE_1_1
def test_header_names_are_case_sensitive(harness, version):
    harness.connect(version)
    harness.feed("SEND\nDestination:/queue/b\ndestination:/queue/a\n\n\0")
    (message,) = sent(harness)
    assert (message.destination, message.headers) == (
        "queue://a",
        (("Destination", "/queue/b"),),
    )


@pytest.mark.clause("stomp-1.1,1.2/frames/case")
@SINCE_1_1
def test_commands_are_case_sensitive(harness, version):
    harness.connect(version)
    harness.feed("send\ndestination:/queue/a\n\n\0")
    assert "unknown command" in harness.error().headers["message"]


# -------------------------------------------------------------------------------- Value Encoding


@pytest.mark.clause("stomp-1.1,1.2/encoding/utf-8", "stomp-1.1,1.2/content-type/utf-8")
@SINCE_1_1
def test_headers_are_utf_8_both_ways(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed("SEND\ndestination:/queue/a\nnäme:žluť €\n\n\0")
    (message,) = sent(harness)
    assert message.headers == (("näme", "žluť €"),)
    assert "näme:žluť €\n".encode() in deliver(harness, message)


@pytest.mark.clause("stomp-1.1,1.2/encoding/utf-8", "stomp-1.1,1.2/content-type/utf-8")
@SINCE_1_1
def test_headers_that_are_not_utf_8_are_refused(harness, version):
    harness.connect(version)
    harness.feed(b"SEND\ndestination:/queue/a\nx:\xff\n\n\0")
    assert "not UTF-8" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/encoding/decode", "stomp-1.1,1.2/encoding/encode")
@pytest.mark.parametrize(
    ("version", "escaped", "value"),
    [("1.1", "a\\nb\\cc\\\\d", "a\nb:c\\d"), ("1.2", "a\\nb\\cc\\\\d\\re", "a\nb:c\\d\re")],
)
def test_escapes_are_decoded_and_encoded(harness, version, escaped, value):
    harness.connect(version)
    harness.subscribe()
    harness.feed(f"SEND\ndestination:/queue/a\n{escaped}:{escaped}\n\n\0")
    (message,) = sent(harness)
    assert message.headers == ((value, value),)
    assert f"\n{escaped}:{escaped}\n".encode() in deliver(harness, message)


@pytest.mark.clause("stomp-1.1,1.2/encoding/undefined")
@pytest.mark.parametrize(
    ("version", "escape"),
    [("1.1", "\\r"), ("1.1", "\\t"), ("1.2", "\\t"), ("1.2", "\\N"), ("1.2", "x\\")],
)
def test_undefined_escapes_are_fatal(harness, version, escape):
    harness.connect(version)
    harness.feed(f"SEND\ndestination:/queue/a\nx:{escape}\n\n\0")
    assert "undefined escape" in harness.error().headers["message"]


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
def test_padding_is_neither_removed_nor_added(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed("SEND\ndestination:/queue/a\n mine :  x  \n\n\0")
    (message,) = sent(harness)
    assert message.headers == ((" mine ", "  x  "),)
    assert b"\n mine :  x  \n" in deliver(harness, message)


# ------------------------------------------------------------------------------------------ Body


@pytest.mark.clause("stomp-1.1,1.2/body/with")
@SINCE_1_1
def test_send_message_and_error_have_bodies(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed("SEND\ndestination:/queue/a\n\nbody\0")
    (message,) = sent(harness)
    assert deliver(harness, message).endswith(b"\n\nbody\0")
    harness.feed("SEND\n\n\0")
    assert harness.error().body


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
def test_no_other_frame_has_a_body(harness, version, head):
    harness.connect(version)
    harness.subscribe()
    harness.feed(f"{head}\nbody\0")
    command = head.partition("\n")[0]
    assert harness.error().headers["message"] == f"{command} must not have a body"
    assert harness.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.1,1.2/body/without")
@SINCE_1_1
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_connect_has_no_body(harness, version, command):
    harness.feed(f"{command}\naccept-version:{version}\n\nbody\0")
    assert harness.error().headers["message"] == f"{command} must not have a body"
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
def test_the_first_of_repeated_headers_counts(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\npriority:7\ndestination:/queue/b\npriority:1\n\n\0")
    (message,) = sent(harness)
    assert (message.destination, message.priority) == ("queue://a", 7)


@pytest.mark.clause("stomp-1.1,1.2/repeated/update")
@SINCE_1_1
def test_repeated_headers_of_the_user_pass_in_order_behind_the_servers(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed("SEND\ndestination:/queue/a\nfoo:World\nfoo:Hello\n\n\0")
    (message,) = sent(harness)
    data = deliver(harness, message)
    assert b"\nfoo:World\nfoo:Hello\n\n" in data
    decoder = Decoder(commands=frozenset({"MESSAGE"}))
    decoder.version = Version(version)
    decoder.receive_data(data)
    (frame,) = decoder.events()
    assert isinstance(frame, Frame)
    assert frame.headers["foo"] == "World"


# ------------------------------------------------------------------------------------ Connecting


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/connecting/answer",
    "stomp-1.1,1.2/connected/version",
    "stomp-1.1,1.2/connect/command",
    "stomp-1.1,1.2/connect/host",
)
@ALL
def test_connect_is_answered_with_connected(harness, version):
    frame = harness.connect(version)
    assert frame.command == "CONNECTED"
    assert frame.headers["version"] == version
    assert not harness.link.is_closing


@pytest.mark.clause("stomp-1.1,1.2/connecting/reject")
@SINCE_1_1
def test_a_rejected_connect_is_told_why_and_closed(harness, version):
    harness.broker.error = AccessError("wrong password", principal="me")
    harness.feed(f"CONNECT\naccept-version:{version}\n\n\0")
    assert "wrong password" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/connect/stomp")
@SINCE_1_1
def test_stomp_is_handled_as_connect(harness, version):
    requests = []
    harness.feed(f"STOMP\naccept-version:{version}\nlogin:me\nheart-beat:5,6\n\n\0")
    requests += harness.broker.requests
    (frame,) = harness.frames()
    assert (frame.command, frame.headers["version"]) == ("CONNECTED", version)
    assert (requests[0].username, requests[0].version) == ("me", version)


@pytest.mark.clause("stomp-1.1,1.2/connect/accept-version", "stomp-1.1,1.2/negotiation/header")
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_without_accept_version_only_1_0_is_meant(harness, command):
    harness.feed(f"{command}\nlogin:me\nheart-beat:5,5\n\n\0")
    (frame,) = harness.frames()
    assert frame.headers["version"] == "1.0"
    assert "heart-beat" not in frame.headers
    assert harness.loop.live_timers == []


@pytest.mark.clause("stomp-1.1,1.2/connect/virtual-host")
@SINCE_1_1
def test_any_host_gets_the_one_virtual_host(harness, version):
    assert harness.connect(version, host="nobody.example").command == "CONNECTED"


@pytest.mark.clause("stomp-1.0,1.1,1.2/connect/login")
@ALL
def test_login_and_passcode_reach_the_broker(harness, version):
    harness.connect(version, login="me", passcode="s:cret")
    (request,) = harness.broker.requests
    assert (request.username, request.password) == ("me", b"s:cret")


@pytest.mark.clause("stomp-1.0/connect/login")
def test_padding_of_the_1_0_example_is_no_part_of_the_login(harness):
    harness.feed("CONNECT\nlogin: me\npasscode:x\n\n\0")
    (request,) = harness.broker.requests
    assert request.username == "me"


@pytest.mark.clause("stomp-1.2/connect/heart-beat", "stomp-1.2/connected/heart-beat")
def test_both_sides_say_their_heart_beats(harness):
    assert harness.connect("1.2", heart_beat="0,7000").headers["heart-beat"] == "1000,1000"
    harness.loop.advance(7)
    assert b"\n" in harness.link.written


@pytest.mark.clause("stomp-1.0,1.1,1.2/connected/session")
@ALL
def test_sessions_are_told_apart(make_harness, version):
    frames = [make_harness().connect(version) for _ in range(3)]
    assert len({frame.headers["session"] for frame in frames}) == 3


@pytest.mark.clause("stomp-1.1,1.2/connected/server", "stomp-1.1,1.2/connected/server-name")
@SINCE_1_1
def test_server_is_a_name_and_a_version(harness, version):
    assert harness.connect(version).headers["server"] == "tidegate/9.9"


@pytest.mark.clause("stomp-1.1,1.2/negotiation/list", "stomp-1.1,1.2/negotiation/highest")
@pytest.mark.parametrize(
    ("accepted", "version"),
    [("1.0,1.1,2.0", "1.1"), ("1.0,1.1,1.2", "1.2"), ("1.2,1.0", "1.2"), ("1.1", "1.1")],
)
def test_the_highest_common_version_is_used(harness, accepted, version):
    harness.feed(f"CONNECT\naccept-version:{accepted}\n\n\0")
    (frame,) = harness.frames()
    assert frame.headers["version"] == version


@pytest.mark.clause("stomp-1.1,1.2/negotiation/none")
def test_without_a_common_version_the_server_lists_its_own(harness):
    harness.feed("CONNECT\naccept-version:2.1,3.0\n\n\0")
    frame = harness.error()
    assert frame.headers["version"] == "1.0,1.1,1.2"
    assert frame.headers["content-type"] == "text/plain"
    assert frame.body.startswith(b"Supported protocol versions are 1.0 1.1 1.2")


# -------------------------------------------------------------------------------- Once Connected


@pytest.mark.clause("stomp-1.1,1.2/connected/other-frames")
@SINCE_1_1
@pytest.mark.parametrize("command", ["HELLO", "MESSAGE", "CONNECTED"])
def test_other_frames_are_errors(harness, version, command):
    harness.connect(version)
    harness.feed(f"{command}\n\n\0")
    assert f"unknown command '{command}'" in harness.error().headers["message"]


# ------------------------------------------------------------------------------------------ SEND


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/send/destination",
    "stomp-1.1,1.2/send/error",
    "stomp-1.0,1.1,1.2/error/may",
)
@ALL
def test_send_needs_a_destination(harness, version):
    harness.connect(version)
    harness.feed("SEND\n\nbody\0")
    assert harness.error().headers["message"] == "SEND needs a destination header"
    assert sent(harness) == []


@pytest.mark.clause("stomp-1.1,1.2/send/error")
@SINCE_1_1
def test_a_send_that_the_broker_refuses_is_an_error(harness, version):
    harness.connect(version)
    harness.connection.fail["publish"] = RequestError("not today")
    harness.feed("SEND\ndestination:/queue/a\n\n\0")
    assert harness.error().headers["message"] == "not today"


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/send/transaction",
    "stomp-1.0,1.1,1.2/ack/transaction",
    "stomp-1.0,1.1,1.2/begin/covers",
    "stomp-1.0,1.1,1.2/headers/standard",
)
@ALL
def test_a_transaction_covers_send_ack_and_nack(harness, version):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    first, second = harness.deliver("1", 1, 2)
    harness.feed("BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\n\n\0")
    harness.feed(ack(version, first, headers="transaction:t\n"))
    if version != "1.0":
        harness.feed(ack(version, second, "NACK", "transaction:t\n"))
    harness.feed("COMMIT\ntransaction:t\n\n\0")
    calls = harness.connection.take()
    expected = [
        ("begin", "t"),
        ("publish", calls[1][1], None, "t"),
        ("acknowledge", "1", [1], None, "t"),
        ("reject", "1", [2], None, "t"),
        ("commit", "t", None),
    ]
    assert calls == (expected if version != "1.0" else expected[:3] + expected[4:])


@pytest.mark.clause("stomp-1.0,1.1,1.2/send/content", "stomp-1.0,1.1,1.2/message/content")
@ALL
@pytest.mark.parametrize("headers", ["", "content-length:4\ncontent-type:text/x-mine\n"])
def test_content_headers_of_send_are_optional_and_arrive(harness, version, headers):
    harness.connect(version)
    harness.subscribe()
    harness.feed(f"SEND\ndestination:/queue/a\n{headers}\nbody\0")
    (message,) = sent(harness)
    data = deliver(harness, message)
    assert b"\ncontent-length:4\n" in data
    assert (b"\ncontent-type:text/x-mine\n" in data) == bool(headers)


@pytest.mark.clause(
    "stomp-1.1,1.2/send/user-headers",
    "stomp-1.1,1.2/send/passed-through",
    "stomp-1.1,1.2/message/headers",
)
@SINCE_1_1
def test_user_headers_arrive_unchanged_and_in_order(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed("SEND\nz:1\ndestination:/queue/a\na:\nm: 2 \nJMSXGroupID:g\n\n\0")
    (message,) = sent(harness)
    data = deliver(harness, message)
    assert b"\nz:1\na:\nm: 2 \nJMSXGroupID:g\n\n" in data
    assert b"\ntimestamp:" in data  # the server's own


# ------------------------------------------------------------------------------------- SUBSCRIBE


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/destination", "stomp-1.1,1.2/subscribe/error")
@ALL
def test_subscribe_needs_a_destination(harness, version):
    harness.connect(version)
    harness.feed("SUBSCRIBE\nid:1\n\n\0")
    assert "needs a header destination" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/error")
@SINCE_1_1
def test_a_subscription_that_the_broker_refuses_is_an_error(harness, version):
    harness.connect(version)
    harness.connection.fail["subscribe"] = AccessError("not yours", principal="me")
    harness.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\nreceipt:r\n\n\0")
    frame = harness.error()
    assert ("not yours" in frame.headers["message"], frame.headers["receipt-id"]) == (True, "r")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/more-headers")
@SINCE_1_1
def test_prefetch_is_a_header_of_ours(harness, version):
    harness.connect(version)
    ((_, request, _),) = harness.subscribe(**{"prefetch-count": 3})
    assert request.prefetch_count == 3


@pytest.mark.clause("stomp-1.0/subscribe/selector")
def test_a_selector_chooses_the_messages(harness):
    harness.connect("1.0")
    harness.feed("SUBSCRIBE\ndestination:/queue/a\nselector:a = 1\n\n\0")
    ((name, request, _),) = harness.connection.take()
    assert (name, request.selector) == ("subscribe", "a = 1")


@pytest.mark.clause("stomp-1.0/subscribe/selector")
def test_a_selector_that_cannot_be_read_is_an_error(harness):
    harness.connect("1.0")
    harness.connection.fail["subscribe"] = RequestError("selector: '= 1' is at column 4")
    harness.feed("SUBSCRIBE\ndestination:/queue/a\nselector:a == 1\n\n\0")
    assert "column 4" in harness.error().headers["message"]
    assert harness.connection.take()[-1] == ("disconnect", {"graceful": False})


@pytest.mark.clause(
    "stomp-1.0/subscribe/id-optional",
    "stomp-1.0/message/subscription",
    "stomp-1.0/unsubscribe/either",
)
def test_an_id_is_optional_in_1_0(harness):
    harness.connect("1.0")
    harness.feed("SUBSCRIBE\ndestination:/queue/a\n\n\0SUBSCRIBE\nid:x\ndestination:/queue/b\n\n\0")
    assert [call[1].key for call in harness.connection.take()] == ["/queue/a", "x"]
    (without,) = harness.deliver("/queue/a", 1)
    (named,) = harness.deliver("x", 2)
    assert "subscription" not in without.headers
    assert named.headers["subscription"] == "x"
    harness.feed("UNSUBSCRIBE\nid:x\n\n\0UNSUBSCRIBE\ndestination: /queue/a\n\n\0")
    assert [call[1] for call in harness.connection.take()] == ["x", "/queue/a"]


@pytest.mark.clause("stomp-1.0/unsubscribe/either")
def test_unsubscribe_with_neither_is_an_error(harness):
    harness.connect("1.0")
    harness.feed("UNSUBSCRIBE\n\n\0")
    assert "needs an id header" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id")
@SINCE_1_1
def test_an_id_is_required_since_1_1(harness, version):
    harness.connect(version)
    harness.feed("SUBSCRIBE\ndestination:/queue/a\n\n\0")
    assert "needs an id header" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id-unique")
@SINCE_1_1
def test_two_subscriptions_may_not_have_one_id(harness, version):
    harness.connect(version)
    harness.subscribe("1")
    harness.feed("SUBSCRIBE\nid:1\ndestination:/queue/b\n\n\0")
    assert "already" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id-unique")
@SINCE_1_1
def test_an_id_is_free_again_after_unsubscribe(harness, version):
    harness.connect(version)
    harness.subscribe("1")
    harness.feed("UNSUBSCRIBE\nid:1\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/b\n\n\0")
    assert harness.frames() == []


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-values")
@ALL
@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_acknowledgement_modes(harness, version, mode):
    harness.connect(version)
    ((_, request, _),) = harness.subscribe(ack=mode)
    assert request.acknowledge == (mode != "auto")


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-values")
@ALL
@pytest.mark.parametrize("mode", ["", "AUTO", "maybe"])
def test_any_other_mode_is_refused(harness, version, mode):
    harness.connect(version)
    harness.feed(f"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:{mode}\n\n\0")
    assert "auto, client, client-individual" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-default")
@ALL
def test_auto_is_the_default_and_needs_no_ack(harness, version):
    harness.connect(version)
    harness.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
    ((_, request, _),) = harness.connection.take()
    assert request.acknowledge is False
    (message,) = harness.deliver("1", 1)
    assert "ack" not in message.headers


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/client-acks")
@ALL
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_nothing_is_acknowledged_before_the_client_says_so(harness, version, mode):
    harness.connect(version)
    harness.subscribe("1", ack=mode)
    (message,) = harness.deliver("1", 5)
    harness.feed("\n")
    assert harness.connection.take() == []
    harness.feed(ack(version, message))
    assert harness.connection.take() == [("acknowledge", "1", [5])]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/redelivery")
@SINCE_1_1
def test_a_lost_client_leaves_its_messages_to_the_broker(harness, version):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    harness.deliver("1", 5)
    harness.session.link_closed(ConnectionResetError())
    assert harness.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/cumulative")
@SINCE_1_1
def test_client_is_cumulative_on_its_own_subscription(harness, version):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    harness.subscribe("2", ack="client")
    harness.deliver("2", 1)
    messages = harness.deliver("1", 2, 3, 4, 5)
    harness.feed(ack(version, messages[2]))
    assert harness.connection.take() == [("acknowledge", "1", [2, 3, 4])]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/individual", "stomp-1.1,1.2/nack/scope")
@SINCE_1_1
@pytest.mark.parametrize(("command", "call"), [("ACK", "acknowledge"), ("NACK", "reject")])
def test_client_individual_covers_one_message(harness, version, command, call):
    harness.connect(version)
    harness.subscribe("1", ack="client-individual")
    messages = harness.deliver("1", 2, 3, 4)
    harness.feed(ack(version, messages[1], command))
    ((name, key, sequences, *_),) = harness.connection.take()
    assert (name, key, list(sequences)) == (call, "1", [3])


@pytest.mark.clause(
    "stomp-1.1,1.2/nack/scope", "stomp-1.1,1.2/nack/headers", "stomp-1.2/subscribe/nack-unprocessed"
)
@SINCE_1_1
def test_nack_is_cumulative_with_client(harness, version):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    messages = harness.deliver("1", 2, 3, 4)
    harness.feed(ack(version, messages[0]))
    harness.feed(ack(version, messages[2], "NACK"))
    assert harness.connection.take() == [
        ("acknowledge", "1", [2]),
        ("reject", "1", [3, 4], None, None),
    ]


# ----------------------------------------------------------------------------------- UNSUBSCRIBE


@pytest.mark.clause("stomp-1.0,1.1,1.2/unsubscribe/stops")
@ALL
def test_no_message_comes_after_unsubscribe(harness, version):
    harness.connect(version)
    harness.subscribe()
    assert len(harness.deliver("1", 1)) == 1
    harness.feed("UNSUBSCRIBE\nid:1\n\n\0")
    assert harness.connection.take() == [("unsubscribe", "1", None, {"forget": False})]
    assert harness.deliver("1", 2) == []  # what was on its way already


@pytest.mark.clause("stomp-1.1,1.2/unsubscribe/id", "stomp-1.1,1.2/unsubscribe/match")
@SINCE_1_1
@pytest.mark.parametrize("header", ["", "destination:/queue/a\n", "id:other\n"])
def test_unsubscribe_names_an_existing_subscription(harness, version, header):
    harness.connect(version)
    harness.subscribe()
    harness.feed(f"UNSUBSCRIBE\n{header}\n\0")
    message = harness.error().headers["message"]
    assert "needs an id" in message or "there is no subscription 'other'" in message


# -------------------------------------------------------------------------------------- ACK, NACK


@pytest.mark.clause(
    "stomp-1.0,1.1/ack/message-id",
    "stomp-1.1/ack/subscription",
    "stomp-1.2/ack/id",
    "stomp-1.1,1.2/nack/headers",
)
@pytest.mark.parametrize("command", ["ACK", "NACK"])
@pytest.mark.parametrize(
    ("version", "headers", "reason"),
    [
        ("1.0", "", "message-id"),
        ("1.0", "message-id:st0re-9\n", "not in flight"),
        ("1.1", "subscription:1\n", "message-id"),
        ("1.1", "message-id:st0re-5\n", "needs a subscription header"),
        ("1.1", "message-id:st0re-5\nsubscription:2\n", "there is no subscription '2'"),
        ("1.1", "message-id:st0re-9\nsubscription:1\n", "not in flight"),
        ("1.2", "message-id:st0re-5\nsubscription:1\n", "needs a header id"),
        ("1.2", "id:st0re-5\n", "ack header"),
        ("1.2", "id:1-9\n", "not in flight"),
    ],
)
def test_acknowledgements_name_their_message(harness, command, version, headers, reason):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    harness.deliver("1", 5)
    harness.feed(f"{command}\n{headers}\n\0")
    if (version, command) == ("1.0", "NACK"):
        reason = "1.0 has no NACK"
    assert reason in harness.error().headers["message"]
    assert harness.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.0,1.1/ack/message-id", "stomp-1.1/ack/subscription")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_message_id_is_that_of_the_message(harness, version):
    harness.connect(version)
    harness.subscribe("1", ack="client-individual")
    harness.subscribe("2", ack="client-individual")
    harness.deliver("1", 5)
    (message,) = harness.deliver("2", 6)
    harness.feed(ack(version, message))
    assert harness.connection.take() == [("acknowledge", "2", [6])]


@pytest.mark.clause("stomp-1.2/ack/id", "stomp-1.2/message/ack")
def test_id_is_the_ack_header_of_the_message(harness):
    harness.connect("1.2")
    harness.subscribe("1", ack="client-individual")
    harness.subscribe("2", ack="client")
    (message,) = harness.deliver("2", 6)
    harness.feed(f"ACK\nid:{message.headers['ack']}\n\n\0")
    assert harness.connection.take() == [("acknowledge", "2", [6])]


# ---------------------------------------------------------------------------------- Transactions


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/begin/transaction",
    "stomp-1.0,1.1,1.2/commit/transaction",
    "stomp-1.0,1.1,1.2/abort/transaction",
)
@ALL
@pytest.mark.parametrize("command", ["BEGIN", "COMMIT", "ABORT"])
def test_transactions_are_named(harness, version, command):
    harness.connect(version)
    harness.feed(f"{command}\n\n\0")
    assert f"{command} needs a header transaction" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.0,1.1,1.2/commit/transaction", "stomp-1.0,1.1,1.2/abort/transaction")
@ALL
def test_commit_and_abort_end_the_named_one(harness, version):
    harness.connect(version)
    harness.feed("BEGIN\ntransaction:a\n\n\0BEGIN\ntransaction:b\n\n\0")
    harness.feed("COMMIT\ntransaction:b\n\n\0ABORT\ntransaction:a\n\n\0")
    assert harness.connection.take()[2:] == [("commit", "b", None), ("abort", "a", None)]


@pytest.mark.clause("stomp-1.2/begin/unique")
def test_a_name_that_is_open_cannot_begin_again(harness):
    harness.connect("1.2")
    harness.connection.fail["begin"] = lambda name: RequestError(f"{name} is open already")
    harness.feed("BEGIN\ntransaction:t\nreceipt:r\n\n\0")
    frame = harness.error()
    assert (frame.headers["message"], frame.headers["receipt-id"]) == ("t is open already", "r")


@pytest.mark.clause("stomp-1.1,1.2/begin/aborted")
@SINCE_1_1
@pytest.mark.parametrize("graceful", [True, False])
def test_open_transactions_are_left_to_the_brokers_disconnect(harness, version, graceful):
    harness.connect(version)
    harness.feed("BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\n\n\0")
    if graceful:
        harness.feed("DISCONNECT\n\n\0")
    harness.session.link_closed(None)
    calls = harness.connection.take()
    assert "commit" not in [call[0] for call in calls]
    assert calls[-1] == ("disconnect", {"graceful": graceful})


# ------------------------------------------------------------------------------------ DISCONNECT


@pytest.mark.clause("stomp-1.0/disconnect/polite", "stomp-1.1,1.2/disconnect/graceful")
@ALL
def test_the_receipt_of_disconnect_comes_when_everything_is_done(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\nreceipt:1\n\n\0DISCONNECT\nreceipt:77\n\n\0")
    (_, (name, farewell)) = harness.connection.take()
    assert (name, harness.frames(), harness.link.is_closing) == ("synchronize", [], False)
    harness.session.confirmed(["1", farewell])
    assert [f.headers["receipt-id"] for f in harness.frames()] == ["1", "77"]
    assert harness.link.is_closing
    harness.loop.turn()
    assert harness.connection.take() == [("disconnect", {"graceful": True})]


@pytest.mark.clause("stomp-1.1,1.2/disconnect/last")
@SINCE_1_1
def test_a_frame_after_disconnect_is_refused(harness, version):
    harness.connect(version)
    harness.feed("DISCONNECT\n\n\0SEND\ndestination:/queue/a\n\n\0")
    assert harness.error().headers["message"] == "SEND is not allowed after DISCONNECT"
    assert sent(harness) == []


# ------------------------------------------------------------------------------ Standard Headers


@pytest.mark.clause(
    "stomp-1.1,1.2/content-length/nul",
    "stomp-1.0,1.1,1.2/content-length/read",
    "stomp-1.0,1.1,1.2/content-length/present",
)
@ALL
def test_a_body_with_nul_passes_by_its_length(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.feed(b"SEND\ndestination:/queue/a\ncontent-length:5\n\na\0b\0c\0")
    (message,) = sent(harness)
    assert message.body == b"a\0b\0c"
    data = deliver(harness, message)
    assert b"\ncontent-length:5\n" in data
    assert data.endswith(b"\n\na\0b\0c\0")


@pytest.mark.clause("stomp-1.0,1.1,1.2/content-length/terminator")
@ALL
def test_a_nul_must_follow_the_counted_body(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\ncontent-length:3\n\nabcd\0")
    assert "not the NUL that ends a frame" in harness.error().body.decode()


@pytest.mark.clause("stomp-1.0/content-length/absent")
@ALL
def test_without_a_length_the_first_nul_ends_the_body(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\n\nab\0SEND\ndestination:/queue/b\n\ncd\0")
    assert [message.body for message in sent(harness)] == [b"ab", b"cd"]


@pytest.mark.clause(
    "stomp-1.1,1.2/content-type/mime",
    "stomp-1.1,1.2/content-type/charset",
    "stomp-1.1,1.2/content-type/present",
)
@SINCE_1_1
@pytest.mark.parametrize(
    "value", ["text/plain", "text/html;charset=utf-16", "application/xml;charset=utf-8"]
)
def test_the_content_type_is_passed_on(harness, version, value):
    harness.connect(version)
    harness.subscribe()
    harness.feed(f"SEND\ndestination:/queue/a\ncontent-type:{value}\n\nx\0")
    (message,) = sent(harness)
    assert message.content_type == value
    assert f"\ncontent-type:{value}\n".encode() in deliver(harness, message)


@pytest.mark.clause("stomp-1.1,1.2/content-type/blob")
@SINCE_1_1
def test_without_a_content_type_every_byte_passes(harness, version):
    harness.connect(version)
    harness.subscribe()
    body = bytes(range(256))
    harness.feed(b"SEND\ndestination:/queue/a\ncontent-length:256\n\n" + body + b"\0")
    (message,) = sent(harness)
    data = deliver(harness, message)
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
def test_every_frame_may_ask_for_a_receipt(harness, version, head):
    harness.connect(version)
    harness.subscribe("1", ack="client")
    (message,) = harness.deliver("1", 5)
    harness.feed("BEGIN\ntransaction:t\n\n\0")
    harness.connection.take()
    command = head.strip()
    if command == "NACK" and version == "1.0":
        harness.feed(ack(version, message, command, "receipt:r 1\n"))
        assert harness.error().headers["receipt-id"] == "r 1"  # 1.0 has no NACK
        return
    if command in ("ACK", "NACK"):
        harness.feed(ack(version, message, command, "receipt:r 1\n"))
    else:
        harness.feed(f"{head}receipt:r 1\n\n\0")
    tokens = [value for call in harness.connection.take() for value in call if value == "r 1"]
    assert tokens == ["r 1"], "the broker is to confirm it, once"
    harness.session.confirmed(tokens)
    (receipt,) = harness.frames()
    assert (receipt.command, receipt.headers) == ("RECEIPT", {"receipt-id": "r 1"})


# --------------------------------------------------------------------------------- Server Frames


@pytest.mark.clause("stomp-1.0,1.1,1.2/server/frames")
@ALL
def test_the_server_sends_message_receipt_and_error(harness, version):
    harness.connect(version)
    harness.subscribe()
    harness.session.deliver("1", [StoredMessage.of(7, Message("queue://a", b"x"), 0)])
    harness.session.confirmed(["r"])
    harness.feed("SEND\n\n\0")
    assert [frame.command for frame in harness.frames()] == ["MESSAGE", "RECEIPT", "ERROR"]


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/message/destination",
    "stomp-1.0,1.1,1.2/message/message-id",
    "stomp-1.1,1.2/message/subscription",
)
@ALL
def test_message_says_what_it_is(harness, version):
    harness.connect(version)
    harness.subscribe("my subscription")
    frames = harness.deliver("my subscription", 7, 8)
    assert {frame.headers["destination"] for frame in frames} == {"/queue/a"}
    assert {frame.headers["subscription"] for frame in frames} == {"my subscription"}
    assert len({frame.headers["message-id"] for frame in frames}) == 2


@pytest.mark.clause("stomp-1.2/message/same-destination")
@pytest.mark.parametrize("name", ["/queue/a", "queue://a", "/topic/a.b"])
def test_the_destination_is_written_as_in_send(harness, name):
    harness.connect("1.2")
    harness.subscribe()
    harness.feed(f"SEND\ndestination:{name}\n\n\0")
    (message,) = sent(harness)
    decoder = Decoder(commands=frozenset({"MESSAGE"}))
    decoder.version = Version.V1_2
    decoder.receive_data(deliver(harness, message))
    (frame,) = decoder.events()
    assert isinstance(frame, Frame)
    assert frame.headers["destination"] == name


@pytest.mark.clause("stomp-1.2/message/ack")
@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_message_has_ack_when_one_is_wanted(harness, mode):
    harness.connect("1.2")
    harness.subscribe("1", ack=mode)
    (message,) = harness.deliver("1", 5)
    assert ("ack" in message.headers) == (mode != "auto")


@pytest.mark.clause("stomp-1.1,1.2/receipt/processed", "stomp-1.0,1.1/receipt/empty")
@ALL
def test_receipt_waits_for_the_broker_and_is_empty(harness, version):
    harness.connect(version)
    harness.feed("SEND\ndestination:/queue/a\nreceipt:a\n\n\0")
    assert harness.frames() == []
    harness.session.confirmed(["a"])
    assert wire(harness) == b"RECEIPT\nreceipt-id:a\n\n\0"


@pytest.mark.clause(
    "stomp-1.2/error/close",
    "stomp-1.0,1.1,1.2/error/message",
    "stomp-1.1,1.2/error/receipt-id",
    "stomp-1.0,1.1,1.2/error/content",
    "stomp-1.0,1.1,1.2/error/may",
    "stomp-1.0,1.1,1.2/content-length/present",
    "stomp-1.1,1.2/content-type/present",
)
@ALL
def test_error_says_what_was_wrong_with_which_frame_and_closes(harness, version):
    harness.connect(version)
    harness.feed("SEND\nreceipt:message-12345\nx:1\n\nHello\0")
    frame = harness.error()  # and the link is closing
    assert frame.headers["message"] == "SEND needs a destination header"
    assert frame.headers["receipt-id"] == "message-12345"
    assert frame.headers["content-type"] == "text/plain"
    assert int(frame.headers["content-length"]) == len(frame.body)
    assert b"SEND\nreceipt:message-12345\nx:1\n" in frame.body
    harness.feed("SEND\ndestination:/queue/a\n\n\0")
    assert sent(harness) == []


# --------------------------------------------------------------------------------- Heart-beating


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/header")
@SINCE_1_1
@pytest.mark.parametrize("value", ["", "1", "1,2,3", "a,b", "-1,0", "1.5,0", "1;2"])
def test_a_malformed_heart_beat_header_is_refused(harness, version, value):
    harness.feed(f"CONNECT\naccept-version:{version}\nheart-beat:{value}\n\n\0")
    assert "heart-beat" in harness.error().headers["message"]


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/missing", "stomp-1.1,1.2/heart-beat/interval")
@SINCE_1_1
@pytest.mark.parametrize("headers", [{}, {"heart_beat": "0,0"}])
def test_without_heart_beats_nothing_is_sent_and_nobody_is_lost(harness, version, headers):
    harness.connect(version, **headers)
    harness.loop.advance(1000)
    assert harness.link.written == []
    assert not harness.link.is_closing


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/interval")
@SINCE_1_1
@pytest.mark.parametrize(("wish", "interval"), [(5000, 5), (300, 1)])
def test_the_larger_interval_counts(make_harness, version, wish, interval):
    harness = make_harness(StompOptions(heart_beat_send_minimum=1.0))
    harness.connect(version, heart_beat=f"0,{wish}")
    harness.loop.advance(interval * 20)
    assert 20 <= len(harness.link.written) <= 60


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/send", "stomp-1.1,1.2/heart-beat/line-end")
@SINCE_1_1
def test_one_line_end_goes_out_in_every_interval(harness, version):
    harness.connect(version, heart_beat="0,4000")
    for _ in range(10):
        harness.loop.advance(4)
        assert wire(harness).strip(b"\n") == b""
        harness.loop.advance(0.5)
    harness.link.written.clear()
    for _ in range(10):
        harness.loop.advance(4)
        written, harness.link.written[:] = list(harness.link.written), []
        assert written
        assert set(written) == {b"\n"}


@pytest.mark.clause(
    "stomp-1.1,1.2/heart-beat/any-data",
    "stomp-1.1,1.2/heart-beat/dead",
    "stomp-1.1,1.2/heart-beat/tolerant",
)
@SINCE_1_1
def test_a_silent_client_is_lost_only_after_twice_the_interval(harness, version):
    harness.connect(version, heart_beat="5000,0")
    for byte in "\nSEND\nx":
        harness.loop.advance(9)  # late, but within the margin
        harness.feed(byte)
    assert not harness.link.is_closing
    harness.loop.advance(11)
    assert "heart-beat" in harness.error().headers["message"]
