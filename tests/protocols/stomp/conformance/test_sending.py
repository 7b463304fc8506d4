"""What the specifications ask of SEND, of transactions, and of what the server sends.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest
from stomp_conformance import ALL, SINCE_1_1, ack, deliver, sent, wire

from tidegate.spi import Message, RequestError, StoredMessage
from tidegate_protocols.stomp import Decoder, Frame, Version

# ------------------------------------------------------------------------------------------ SEND


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/send/destination",
    "stomp-1.1,1.2/send/error",
    "stomp-1.0,1.1,1.2/error/may",
)
@ALL
def test_send_needs_a_destination(connected):
    assert connected.refusal("SEND\n\nbody\0") == "SEND needs a destination header"
    assert sent(connected) == []


@pytest.mark.clause("stomp-1.1,1.2/send/error")
@SINCE_1_1
def test_a_send_that_the_broker_refuses_is_an_error(connected):
    connected.connection.fail["publish"] = RequestError("not today")
    assert connected.refusal("SEND\ndestination:/queue/a\n\n\0") == "not today"


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/send/transaction",
    "stomp-1.0,1.1,1.2/ack/transaction",
    "stomp-1.0,1.1,1.2/begin/covers",
    "stomp-1.0,1.1,1.2/headers/standard",
)
@ALL
def test_a_transaction_covers_send_ack_and_nack(connected, version):
    connected.subscribe("1", ack="client")
    first, second = connected.deliver("1", 1, 2)
    connected.feed("BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\n\n\0")
    connected.feed(ack(version, first, headers="transaction:t\n"))
    if version != "1.0":
        connected.feed(ack(version, second, "NACK", "transaction:t\n"))
    connected.feed("COMMIT\ntransaction:t\n\n\0")
    calls = connected.connection.take()
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
def test_content_headers_of_send_are_optional_and_arrive(connected, headers):
    connected.subscribe()
    connected.feed(f"SEND\ndestination:/queue/a\n{headers}\nbody\0")
    (message,) = sent(connected)
    data = deliver(connected, message)
    assert b"\ncontent-length:4\n" in data
    assert (b"\ncontent-type:text/x-mine\n" in data) == bool(headers)


@pytest.mark.clause(
    "stomp-1.1,1.2/send/user-headers",
    "stomp-1.1,1.2/send/passed-through",
    "stomp-1.1,1.2/message/headers",
)
@SINCE_1_1
def test_user_headers_arrive_unchanged_and_in_order(connected):
    connected.subscribe()
    connected.feed("SEND\nz:1\ndestination:/queue/a\na:\nm: 2 \nJMSXGroupID:g\n\n\0")
    (message,) = sent(connected)
    data = deliver(connected, message)
    assert b"\nz:1\na:\nm: 2 \nJMSXGroupID:g\n\n" in data
    assert b"\ntimestamp:" in data  # the server's own


# ---------------------------------------------------------------------------------- Transactions


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/begin/transaction",
    "stomp-1.0,1.1,1.2/commit/transaction",
    "stomp-1.0,1.1,1.2/abort/transaction",
)
@ALL
@pytest.mark.parametrize("command", ["BEGIN", "COMMIT", "ABORT"])
def test_transactions_are_named(connected, command):
    assert f"{command} needs a non-empty transaction header" in connected.refusal(
        f"{command}\n\n\0"
    )


@pytest.mark.clause("stomp-1.0,1.1,1.2/commit/transaction", "stomp-1.0,1.1,1.2/abort/transaction")
@ALL
def test_commit_and_abort_end_the_named_one(connected):
    connected.feed("BEGIN\ntransaction:a\n\n\0BEGIN\ntransaction:b\n\n\0")
    connected.feed("COMMIT\ntransaction:b\n\n\0ABORT\ntransaction:a\n\n\0")
    assert connected.connection.take()[2:] == [("commit", "b", None), ("abort", "a", None)]


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
def test_open_transactions_are_left_to_the_brokers_disconnect(connected, graceful):
    connected.feed("BEGIN\ntransaction:t\n\n\0SEND\ndestination:/queue/a\ntransaction:t\n\n\0")
    if graceful:
        connected.feed("DISCONNECT\n\n\0")
    connected.session.link_closed(None)
    calls = connected.connection.take()
    assert "commit" not in [call[0] for call in calls]
    assert calls[-1] == ("disconnect", {"graceful": graceful})


# --------------------------------------------------------------------------------- Server Frames


@pytest.mark.clause("stomp-1.0,1.1,1.2/server/frames")
@ALL
def test_the_server_sends_message_receipt_and_error(connected):
    connected.subscribe()
    connected.session.deliver("1", [StoredMessage.of(7, Message("queue://a", b"x"), 0)])
    connected.session.confirmed(["r"])
    connected.feed("SEND\n\n\0")
    assert [frame.command for frame in connected.frames()] == ["MESSAGE", "RECEIPT", "ERROR"]


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/message/destination",
    "stomp-1.0,1.1,1.2/message/message-id",
    "stomp-1.1,1.2/message/subscription",
)
@ALL
def test_message_says_what_it_is(connected):
    connected.subscribe("my subscription")
    frames = connected.deliver("my subscription", 7, 8)
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
def test_receipt_waits_for_the_broker_and_is_empty(connected):
    connected.feed("SEND\ndestination:/queue/a\nreceipt:a\n\n\0")
    assert connected.frames() == []
    connected.session.confirmed(["a"])
    assert wire(connected) == b"RECEIPT\nreceipt-id:a\n\n\0"


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
def test_error_says_what_was_wrong_with_which_frame_and_closes(connected):
    connected.feed("SEND\nreceipt:message-12345\nx:1\n\nHello\0")
    frame = connected.error()  # and the link is closing
    assert frame.headers["message"] == "SEND needs a destination header"
    assert frame.headers["receipt-id"] == "message-12345"
    assert frame.headers["content-type"] == "text/plain"
    assert int(frame.headers["content-length"]) == len(frame.body)
    assert b"SEND\nreceipt:message-12345\nx:1\n" in frame.body
    connected.feed("SEND\ndestination:/queue/a\n\n\0")
    assert sent(connected) == []


@pytest.mark.parametrize(
    "unreadable",
    ["BOGUS\n\n\0", "SEND\nno colon\n\n\0", "SEND\ncontent-length:x\n\n\0"],
    ids=["command", "header", "length"],
)
@ALL
def test_what_cannot_be_read_is_not_blamed_on_the_frame_before_it(connected, unreadable):
    connected.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\nreceipt:innocent\n\n\0" + unreadable)
    error = connected.error()
    assert "receipt-id" not in error.headers
    assert b"SUBSCRIBE" not in error.body


@ALL
def test_error_shows_the_headers_that_were_sent_and_no_others(connected):
    connected.feed("SEND\ndestination:/queue/a\ntransaction:t\npriority:11\n\n\0")
    _, shown, _ = connected.error().body.split(b"-----\n")
    command, *headers = shown.splitlines()
    assert command == b"SEND"
    assert sorted(headers) == [b"destination:/queue/a", b"priority:11", b"transaction:t"]
