"""What the specifications ask of subscriptions and acknowledgements.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest
from stomp_conformance import ALL, SINCE_1_1, ack

from tidegate.spi import AccessError, RequestError

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
