"""What the specifications ask of subscriptions and acknowledgements.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest
from stomp_conformance import ALL, SINCE_1_1, ack

from tidegate.spi import AccessError, RequestError

# ------------------------------------------------------------------------------------- SUBSCRIBE


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/destination", "stomp-1.1,1.2/subscribe/error")
@ALL
def test_subscribe_needs_a_destination(connected):
    assert "needs a non-empty destination header" in connected.refusal("SUBSCRIBE\nid:1\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/error")
@SINCE_1_1
def test_a_subscription_that_the_broker_refuses_is_an_error(connected):
    connected.connection.fail["subscribe"] = AccessError("not yours", principal="me")
    connected.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\nreceipt:r\n\n\0")
    frame = connected.error()
    assert ("not yours" in frame.headers["message"], frame.headers["receipt-id"]) == (True, "r")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/more-headers")
@SINCE_1_1
def test_prefetch_is_a_header_of_ours(connected):
    ((_, request, _),) = connected.subscribe(**{"prefetch-count": 3})
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
    assert "column 4" in harness.refusal("SUBSCRIBE\ndestination:/queue/a\nselector:a == 1\n\n\0")
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
    assert "needs an id header" in harness.refusal("UNSUBSCRIBE\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id")
@SINCE_1_1
def test_an_id_is_required_since_1_1(connected):
    assert "needs an id header" in connected.refusal("SUBSCRIBE\ndestination:/queue/a\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id-unique")
@SINCE_1_1
def test_two_subscriptions_may_not_have_one_id(connected):
    connected.subscribe("1")
    assert "already" in connected.refusal("SUBSCRIBE\nid:1\ndestination:/queue/b\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/subscribe/id-unique")
@SINCE_1_1
def test_an_id_is_free_again_after_unsubscribe(connected):
    connected.subscribe("1")
    connected.feed("UNSUBSCRIBE\nid:1\n\n\0SUBSCRIBE\nid:1\ndestination:/queue/b\n\n\0")
    assert connected.frames() == []


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-values")
@ALL
@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_acknowledgement_modes(connected, mode):
    ((_, request, _),) = connected.subscribe(ack=mode)
    assert request.acknowledge == (mode != "auto")


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-values")
@ALL
@pytest.mark.parametrize("mode", ["", "AUTO", "maybe"])
def test_any_other_mode_is_refused(connected, mode):
    assert "auto, client, client-individual" in connected.refusal(
        f"SUBSCRIBE\nid:1\ndestination:/queue/a\nack:{mode}\n\n\0"
    )


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/ack-default")
@ALL
def test_auto_is_the_default_and_needs_no_ack(connected):
    connected.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\n\n\0")
    ((_, request, _),) = connected.connection.take()
    assert request.acknowledge is False
    (message,) = connected.deliver("1", 1)
    assert "ack" not in message.headers


@pytest.mark.clause("stomp-1.0,1.1,1.2/subscribe/client-acks")
@ALL
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_nothing_is_acknowledged_before_the_client_says_so(connected, version, mode):
    connected.subscribe("1", ack=mode)
    (message,) = connected.deliver("1", 5)
    connected.feed("\n")
    assert connected.connection.take() == []
    connected.feed(ack(version, message))
    assert connected.connection.take() == [("acknowledge", "1", [5])]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/redelivery")
@SINCE_1_1
def test_a_lost_client_leaves_its_messages_to_the_broker(connected):
    connected.subscribe("1", ack="client")
    connected.deliver("1", 5)
    connected.session.link_closed(ConnectionResetError())
    assert connected.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/cumulative")
@SINCE_1_1
def test_client_is_cumulative_on_its_own_subscription(connected, version):
    connected.subscribe("1", ack="client")
    connected.subscribe("2", ack="client")
    connected.deliver("2", 1)
    messages = connected.deliver("1", 2, 3, 4, 5)
    connected.feed(ack(version, messages[2]))
    assert connected.connection.take() == [("acknowledge", "1", [2, 3, 4])]


@pytest.mark.clause("stomp-1.1,1.2/subscribe/individual", "stomp-1.1,1.2/nack/scope")
@SINCE_1_1
@pytest.mark.parametrize(("command", "call"), [("ACK", "acknowledge"), ("NACK", "reject")])
def test_client_individual_covers_one_message(connected, version, command, call):
    connected.subscribe("1", ack="client-individual")
    messages = connected.deliver("1", 2, 3, 4)
    connected.feed(ack(version, messages[1], command))
    ((name, key, sequences, *_),) = connected.connection.take()
    assert (name, key, list(sequences)) == (call, "1", [3])


@pytest.mark.clause(
    "stomp-1.1,1.2/nack/scope", "stomp-1.1,1.2/nack/headers", "stomp-1.2/subscribe/nack-unprocessed"
)
@SINCE_1_1
def test_nack_is_cumulative_with_client(connected, version):
    connected.subscribe("1", ack="client")
    messages = connected.deliver("1", 2, 3, 4)
    connected.feed(ack(version, messages[0]))
    connected.feed(ack(version, messages[2], "NACK"))
    assert connected.connection.take() == [
        ("acknowledge", "1", [2]),
        ("reject", "1", [3, 4], None, None),
    ]


# ----------------------------------------------------------------------------------- UNSUBSCRIBE


@pytest.mark.clause("stomp-1.0,1.1,1.2/unsubscribe/stops")
@ALL
def test_no_message_comes_after_unsubscribe(connected):
    connected.subscribe()
    assert len(connected.deliver("1", 1)) == 1
    connected.feed("UNSUBSCRIBE\nid:1\n\n\0")
    assert connected.connection.take() == [("unsubscribe", "1", None, {"forget": False})]
    assert connected.deliver("1", 2) == []  # what was on its way already


@pytest.mark.clause("stomp-1.1,1.2/unsubscribe/id", "stomp-1.1,1.2/unsubscribe/match")
@SINCE_1_1
@pytest.mark.parametrize("header", ["", "destination:/queue/a\n", "id:other\n"])
def test_unsubscribe_names_an_existing_subscription(connected, header):
    connected.subscribe()
    connected.feed(f"UNSUBSCRIBE\n{header}\n\0")
    message = connected.error().headers["message"]
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
        ("1.2", "message-id:st0re-5\nsubscription:1\n", "needs a non-empty id header"),
        ("1.2", "id:st0re-5\n", "ack header"),
        ("1.2", "id:1-9\n", "not in flight"),
    ],
)
def test_acknowledgements_name_their_message(connected, command, version, headers, reason):
    connected.subscribe("1", ack="client")
    connected.deliver("1", 5)
    connected.feed(f"{command}\n{headers}\n\0")
    if (version, command) == ("1.0", "NACK"):
        reason = "1.0 has no NACK"
    assert reason in connected.error().headers["message"]
    assert connected.connection.take() == [("disconnect", {"graceful": False})]


@pytest.mark.clause("stomp-1.0,1.1/ack/message-id", "stomp-1.1/ack/subscription")
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_message_id_is_that_of_the_message(connected, version):
    connected.subscribe("1", ack="client-individual")
    connected.subscribe("2", ack="client-individual")
    connected.deliver("1", 5)
    (message,) = connected.deliver("2", 6)
    connected.feed(ack(version, message))
    assert connected.connection.take() == [("acknowledge", "2", [6])]


@pytest.mark.clause("stomp-1.2/ack/id", "stomp-1.2/message/ack")
def test_id_is_the_ack_header_of_the_message(harness):
    harness.connect("1.2")
    harness.subscribe("1", ack="client-individual")
    harness.subscribe("2", ack="client")
    (message,) = harness.deliver("2", 6)
    harness.feed(f"ACK\nid:{message.headers['ack']}\n\n\0")
    assert harness.connection.take() == [("acknowledge", "2", [6])]
