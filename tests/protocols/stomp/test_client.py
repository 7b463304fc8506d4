"""What a connected client's frames mean to the broker."""

import pytest

from tidegate.spi import (
    Message,
    RequestError,
    RetainHandling,
    StoredMessage,
    StoreFullError,
    SubscribeRequest,
)
from tidegate_protocols.stomp import StompOptions


class TestSend:
    def test_becomes_a_message(self, harness):
        harness.connect(client_id="me")
        harness.feed("SEND\ndestination:/queue/a\nreceipt:7\nx:1\ncontent-length:2\ny:2\n\n\0b\0")
        ((name, message, token, transaction),) = harness.connection.take()
        assert (name, token, transaction) == ("publish", "7", None)
        assert message.received_at > 1_700_000_000_000_000
        assert message == Message(
            "queue://a",
            b"\0b",
            (("x", "1"), ("y", "2")),
            message.received_at,
            protocol="stomp",
            client_id="me",
        )

    def test_with_known_headers_fills_fields(self, harness):
        harness.connect()
        harness.feed("SEND\ndestination:queue://a\npriority:9\nmine:1\n\n\0")
        ((_, message, token, _),) = harness.connection.take()
        assert (message.priority, message.headers, token) == (9, (("mine", "1"),), None)
        assert message.original_name == "queue://a"

    def test_repeated_headers_keep_their_order(self, harness):
        harness.connect()
        harness.feed("SEND\na:1\ndestination:/queue/a\na:2\ndestination:/queue/b\n\n\0")
        ((_, message, _, _),) = harness.connection.take()
        assert message.destination == "queue://a"
        assert message.headers == (("a", "1"), ("a", "2"))

    def test_in_a_transaction_names_it(self, harness):
        harness.connect()
        harness.feed("SEND\ndestination:/queue/a\ntransaction:t\n\n\0")
        assert harness.connection.take()[0][2:] == (None, "t")

    def test_with_a_duplicate_id_names_it_and_keeps_the_header(self, harness):
        harness.connect()
        harness.feed("SEND\ndestination:/queue/a\n_AMQ_DUPL_ID:x\nn:1\n_AMQ_DUPL_ID:y\n\n\0")
        ((_, message, _, _, named),) = harness.connection.take()
        assert named == {"duplicate_id": "x"}
        assert message.headers == (("_AMQ_DUPL_ID", "x"), ("n", "1"), ("_AMQ_DUPL_ID", "y"))

    def test_all_of_one_read_have_one_stamp(self, harness):
        harness.connect()
        harness.feed("SEND\ndestination:/queue/a\n\n\0" * 3)
        assert len({call[1].received_at for call in harness.connection.take()}) == 1

    def test_to_many_destinations_is_routed_right(self, harness):
        harness.connect()
        harness.feed("".join(f"SEND\ndestination:/queue/q{n}\n\n\0" for n in range(600)) * 2)
        sent = [call[1].destination for call in harness.connection.take()]
        assert sent == [f"queue://q{n}" for n in range(600)] * 2
        assert len(harness.session._client._destinations) <= 256

    def test_without_destination_is_an_error_with_the_frame(self, harness):
        harness.connect()
        harness.feed("SEND\nreceipt:7\nx:1\n\nbody\0")
        frame = harness.error()
        assert frame.headers["receipt-id"] == "7"
        assert frame.headers["message"] == "SEND needs a destination header"
        assert b"SEND\nreceipt:7\nx:1\n(body of 4 bytes)" in frame.body

    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ("destination:nowhere\n", "write /queue/NAME or /topic/NAME"),
            ("destination:/queue/a.*\n", "wildcard"),
            ("destination:/queue/a\npriority:11\n", "priority:11"),
        ],
    )
    def test_that_is_refused_says_why_and_shows_the_frame(self, harness, headers, reason):
        harness.connect()
        harness.feed(f"SEND\n{headers}receipt:7\n\n\0")
        frame = harness.error()
        assert reason in frame.body.decode()
        assert frame.headers["receipt-id"] == "7"
        assert headers.encode().splitlines()[0] in frame.body
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_a_full_store_is_told(self, harness):
        harness.connect()
        harness.connection.fail["publish"] = StoreFullError("no room in /var/lib")
        harness.feed("SEND\ndestination:/queue/a\nreceipt:7\n\n\0")
        frame = harness.error()
        assert frame.headers["message"] == StoreFullError.client_text
        assert frame.headers["receipt-id"] == "7"


class TestSubscribe:
    def test_asks_the_broker(self, harness):
        harness.connect()
        calls = harness.subscribe(**{"prefetch-count": 5, "receipt": "r"})
        assert calls == [
            ("subscribe", SubscribeRequest(key="1", destination="queue://a", prefetch_count=5), "r")
        ]

    def test_auto_is_the_default_and_needs_no_acks(self, harness):
        harness.connect()
        harness.feed("SUBSCRIBE\nid:1\ndestination:/topic/a.>\nactivemq.prefetchSize:9\n\n\0")
        ((_, request, token),) = harness.connection.take()
        assert (request.acknowledge, request.destination, token) == (False, "topic://a.>", None)
        assert request.prefetch_count == 9

    @pytest.mark.parametrize(
        "name",
        ["activemq.subscriptionName", "durable-subscription-name", "durable-subscriber-name"],
    )
    def test_durable_by_any_of_three_names(self, harness, name):
        harness.connect(client_id="me")
        ((_, request, _),) = harness.subscribe("1", "/topic/a", **{name: "mine"})
        assert request.durable_name == "mine"
        harness.feed("UNSUBSCRIBE\nid:1\n\n\0")
        assert harness.connection.take() == [("unsubscribe", "1", None, {"forget": False})]
        harness.subscribe("1", "/topic/a", **{name: "mine"})
        harness.feed(f"UNSUBSCRIBE\nid:1\n{name}:mine\nreceipt:u\n\n\0")
        assert harness.connection.take() == [("unsubscribe", "1", "u", {"forget": True})]

    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ("destination:/queue/a\n", "needs an id"),
            ("id:1\n", "needs a non-empty destination header"),
            ("id:1\ndestination:a\n", "write /queue/NAME"),
            ("id:1\ndestination:/queue/a\nack:maybe\n", "auto, client, client-individual"),
            ("id:1\ndestination:/queue/a\nprefetch-count:x\n", "not a number"),
            ("id:1\ndestination:/queue/a\nbrowser:yes\n", "write true or false"),
            ("id:1\ndestination:/topic/a\nretained:1\n", "retained:1 is not allowed"),
            ("id:1\ndestination:a\nsubscription-type:X\n", "write ANYCAST or MULTICAST"),
            ("id:1\ndestination:/topic/a\ndurable-subscription-name:x\n", "client-id"),
            ("id:0\ndestination:/queue/b\n", "already"),
        ],
    )
    def test_that_is_refused_says_why(self, harness, headers, reason):
        harness.connect()
        harness.subscribe("0")
        harness.feed(f"SUBSCRIBE\n{headers}\n\0")
        assert reason in harness.error().body.decode()

    def test_durable_is_for_topics(self, harness):
        harness.connect(client_id="me")
        harness.feed("SUBSCRIBE\nid:1\ndestination:/queue/a\ndurable-subscription-name:x\n\n\0")
        assert "only a topic subscription can be durable" in harness.error().body.decode()

    def test_more_than_the_limit_is_refused(self, make_harness):
        harness = make_harness(StompOptions(subscriptions_max=2))
        harness.connect()
        harness.subscribe("1")
        harness.subscribe("2")
        harness.feed("UNSUBSCRIBE\nid:1\n\n\0")
        harness.subscribe("3")
        assert harness.frames() == []
        harness.subscribe("4")
        assert "the listener's limit of 2 subscriptions" in harness.error().body.decode()

    def test_in_1_0_needs_no_id(self, harness):
        harness.connect("1.0")
        harness.feed("SUBSCRIBE\ndestination:/queue/a\nack:client\n\nignored\0")
        ((_, request, _),) = harness.connection.take()
        assert request.key == "/queue/a"
        (message,) = harness.deliver("/queue/a", 5)
        assert "subscription" not in message.headers
        harness.feed("UNSUBSCRIBE\ndestination:/queue/a\n\n\0")
        assert harness.connection.take() == [("unsubscribe", "/queue/a", None, {"forget": False})]


class TestTemporaryDestinations:
    def test_send_subscribe_and_reply_to_mean_the_same_one(self, harness):
        harness.connect()
        ((_, request, _),) = harness.subscribe("1", "/temp-queue/answers")
        assert request == SubscribeRequest(key="1", destination="queue://$temporary.T.answers")
        harness.feed("SEND\ndestination:/queue/ask\nreply-to:/temp-queue/answers\n\n\0")
        assert harness.connection.take()[0][1].reply_to == "queue://$temporary.T.answers"
        harness.feed("SEND\ndestination:/temp-queue/answers\n\n\0" * 2)
        for call in harness.connection.take():
            assert call[1].destination == "queue://$temporary.T.answers"
            assert call[1].original_name == "/temp-queue/answers"

    def test_what_the_responder_gets_it_can_send_to(self, harness):
        harness.connect()
        harness.subscribe()
        message = Message("queue://a", b"", reply_to="topic://$temporary.T.x")
        harness.session.deliver("1", [StoredMessage.of(1, message)])
        reply_to = harness.frames()[0].headers["reply-to"]
        assert reply_to == "/topic/$temporary.T.x"
        harness.feed(f"SEND\ndestination:{reply_to}\n\n\0")
        assert harness.connection.take()[0][1].destination == "topic://$temporary.T.x"

    @pytest.mark.parametrize(
        "frame",
        [
            "SEND\ndestination:/temp-queue/a\n",
            "SEND\ndestination:/queue/a\nreply-to:/temp-queue/a\n",
            "SUBSCRIBE\nid:1\ndestination:/temp-topic/a\n",
        ],
    )
    def test_what_the_broker_refuses_is_an_error(self, harness, frame):
        harness.connect()
        harness.connection.fail["make_temporary"] = RequestError("that is the limit")
        harness.feed(f"{frame}receipt:7\n\n\0")
        error = harness.error()
        assert error.headers["message"] == "that is the limit"
        assert error.headers["receipt-id"] == "7"


class TestRoutingTypes:
    def test_choose_queue_or_topic_for_bare_names(self, harness):
        harness.connect()
        for kind in ("ANYCAST", "MULTICAST", "ANYCAST"):
            harness.feed(f"SEND\ndestination:orders\ndestination-type:{kind}\n\n\0")
        sent = [call[1] for call in harness.connection.take()]
        assert [m.destination for m in sent] == [
            "queue://orders",
            "topic://orders",
            "queue://orders",
        ]
        assert sent[0].original_name == "orders"
        assert sent[0].headers == (("destination-type", "ANYCAST"),)
        harness.feed("SEND\ndestination:orders\n\n\0")
        assert "write /queue/NAME" in harness.error().body.decode()

    @pytest.mark.parametrize("name", ["subscription-type", "destination-type"])
    def test_of_a_subscription(self, harness, name):
        harness.connect()
        ((_, request, _),) = harness.subscribe("1", "orders.*", **{name: "MULTICAST"})
        assert request.destination == "topic://orders.*"


@pytest.mark.parametrize(("asked", "handling"), [("true", 0), ("false", 2)])
def test_retained_messages_come_to_those_who_ask(harness, asked, handling):
    harness.connect()
    ((_, request, _),) = harness.subscribe("1", "/topic/a.>", retained=asked)
    assert request.retain_handling == RetainHandling(handling)


class TestBrowsing:
    def test_asks_for_copies_and_never_for_acknowledgements(self, harness):
        harness.connect()
        calls = harness.subscribe("1", "/queue/a", ack="client", browser="true", receipt="r")
        request = SubscribeRequest(key="1", destination="queue://a", acknowledge=False, browse=True)
        assert calls == [("subscribe", request, "r")]
        (frame,) = harness.deliver("1", 5)
        assert "ack" not in frame.headers

    @pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
    def test_ends_with_a_message_that_says_so(self, harness, version):
        harness.connect(version)
        harness.subscribe("b1", "/queue/a", ack="auto", browser="true")
        harness.session.deliver("b1", ())
        (frame,) = harness.frames()
        assert frame.command == "MESSAGE"
        assert frame.headers["browser"] == "end"
        assert frame.headers["subscription"] == "b1"
        assert frame.headers["destination"] == "/queue/a"
        assert frame.headers["message-id"].startswith("st0re-end-")
        assert frame.body == b""

    def test_is_over_then_and_its_id_free(self, harness):
        harness.connect()
        harness.subscribe("1", "/queue/a", browser="true")
        harness.session.deliver("1", ())
        harness.frames()
        harness.feed("UNSUBSCRIBE\nid:1\nreceipt:u\n\n\0")  # too late, and no fault
        assert harness.connection.take() == [("unsubscribe", "1", "u")]
        harness.subscribe("1", "/queue/b")
        assert len(harness.deliver("1", 5)) == 1
        harness.feed("UNSUBSCRIBE\nid:2\n\n\0")
        assert "there is no subscription '2'" in harness.error().body.decode()

    def test_many_do_not_add_up(self, make_harness):
        harness = make_harness(StompOptions(subscriptions_max=1))
        harness.connect()
        for number in range(200):
            harness.subscribe(str(number), "/queue/a", browser="true")
            harness.session.deliver(str(number), ())
        assert [f.command for f in harness.frames()] == ["MESSAGE"] * 200
        assert len(harness.session._client._browsed) <= 64
        assert not harness.session._client._by_number

    def test_that_was_given_up_stays_silent(self, harness):
        harness.connect()
        harness.subscribe("1", "/queue/a", browser="true")
        harness.feed("UNSUBSCRIBE\nid:1\n\n\0")
        harness.session.deliver("1", ())
        assert harness.frames() == []


class TestUnsubscribe:
    @pytest.mark.parametrize(
        ("headers", "reason"),
        [
            ("", "needs an id"),
            ("destination:/queue/a\n", "needs an id"),
            ("id:9\n", "there is no subscription '9'"),
            ("id:1\ndurable-subscription-name:x\n", "is not the durable subscription 'x'"),
        ],
    )
    def test_that_is_refused_says_why(self, harness, headers, reason):
        harness.connect()
        harness.subscribe()
        harness.feed(f"UNSUBSCRIBE\n{headers}\n\0")
        assert reason in harness.error().body.decode()

    def test_deliveries_on_the_way_are_dropped(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed("UNSUBSCRIBE\nid:1\n\n\0")
        assert harness.deliver("1", 5) == []


class TestAcknowledge:
    def test_1_2_names_the_ack_header(self, harness):
        harness.connect()
        harness.subscribe("first")
        harness.subscribe("second", ack="client")
        frames = harness.deliver("second", 7, 8)
        assert [f.headers["ack"] for f in frames] == ["2-7", "2-8"]
        assert [f.headers["message-id"] for f in frames] == ["st0re-7", "st0re-8"]
        harness.feed("ACK\nid:2-8\n\n\0")
        assert harness.connection.take() == [("acknowledge", "second", [7, 8])]

    def test_acks_of_one_read_go_in_one_call_per_subscription(self, harness):
        harness.connect()
        harness.subscribe("a")
        harness.subscribe("b", ack="client")
        harness.deliver("b", 3, 4, 5)
        harness.feed("ACK\nid:1-1\n\n\0ACK\nid:2-4\n\n\0ACK\nid:1-2\n\n\0ACK\nid:2-5\n\n\0")
        assert sorted(harness.connection.take()) == [
            ("acknowledge", "a", [1, 2]),
            ("acknowledge", "b", [3, 4, 5]),
        ]

    def test_acks_are_passed_before_any_other_frame_acts(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed(
            "ACK\nid:1-1\n\n\0SEND\ndestination:/queue/b\n\n\0ACK\nid:1-2\nreceipt:r\n\n\0ACK\nid:1-3\n\n\0"
        )
        assert [(c[0], *c[2:]) for c in harness.connection.take()] == [
            ("acknowledge", [1]),
            ("publish", None, None),
            ("acknowledge", [2], "r", None),
            ("acknowledge", [3]),
        ]

    def test_one_bad_ack_does_not_spoil_those_before_it(self, harness):
        harness.connect()
        harness.subscribe()

        def check(key, sequences, *rest):
            return RequestError("message 6 is not in flight") if 6 in sequences else None

        harness.connection.fail["acknowledge"] = check
        harness.feed(
            "ACK\nid:1-5\n\n\0ACK\nid:1-6\n\n\0ACK\nid:1-7\n\n\0SEND\ndestination:/queue/a\nreceipt:9\n\n\0"
        )
        frame = harness.error()
        assert "message 6 is not in flight" in frame.body.decode()
        assert "receipt-id" not in frame.headers  # the SEND was not refused, it was not reached
        assert harness.connection.take() == [
            ("acknowledge", "1", (5,)),
            ("disconnect", {"graceful": False}),
        ]

    def test_acks_before_a_malformed_frame_count(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed("ACK\nid:1-5\n\n\0GARBAGE\n\n\0")
        assert "unknown command" in harness.error().body.decode()
        assert harness.connection.take()[0] == ("acknowledge", "1", [5])

    def test_acks_before_a_bad_ack_of_the_same_read_count(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed("ACK\nid:1-5\n\n\0ACK\nid:9-6\n\n\0")
        assert "is not a subscription" in harness.error().body.decode()
        assert harness.connection.take()[0] == ("acknowledge", "1", [5])

    def test_1_1_names_message_and_subscription(self, harness):
        harness.connect("1.1")
        harness.subscribe("s", ack="client")
        (_, second) = harness.deliver("s", 7, 8)
        assert "ack" not in second.headers
        harness.feed(f"ACK\nmessage-id:{second.headers['message-id']}\nsubscription:s\n\n\0")
        assert harness.connection.take() == [("acknowledge", "s", [7, 8])]

    def test_1_0_names_only_the_message(self, harness):
        harness.connect("1.0")
        harness.subscribe("s", ack="client")
        harness.subscribe("t", ack="client-individual")
        harness.deliver("s", 7, 9)
        harness.deliver("t", 8)
        harness.feed("ACK\nmessage-id: st0re-8\n\n\0ACK\nmessage-id:st0re-9\n\n\0")
        assert sorted(harness.connection.take()) == [
            ("acknowledge", "s", [7, 9]),
            ("acknowledge", "t", [8]),
        ]

    @pytest.mark.parametrize(
        ("version", "headers", "reason"),
        [
            ("1.2", "message-id:st0re-7\nsubscription:s\n", "needs a non-empty id header"),
            ("1.2", "id:7\n", "use the value of the MESSAGE frame's ack header"),
            ("1.2", "id:9-7\n", "use the value of the MESSAGE frame's ack header"),
            ("1.2", "id:1-x\n", "not an id that this gateway assigned"),
            ("1.2", "id:1-٣\n", "not an id that this gateway assigned"),
            ("1.2", "id:1-99\n", "not in flight"),
            ("1.2", "id:2-7\n", "ack:auto"),
            ("1.1", "subscription:s\n", "needs a non-empty message-id header"),
            ("1.1", "message-id:st0re-7\n", "needs a subscription header"),
            ("1.1", "message-id:st0re-7\nsubscription:x\n", "there is no subscription 'x'"),
            ("1.1", "message-id:other-7\nsubscription:s\n", "does not come from this gateway"),
            ("1.0", "message-id:st0re-99\n", "is not in flight"),
        ],
    )
    def test_that_is_refused_says_why(self, harness, version, headers, reason):
        harness.connect(version)
        harness.subscribe("s", ack="client")
        harness.subscribe("auto", ack="auto")
        harness.deliver("s", 7)
        harness.feed(f"ACK\n{headers}\n\0")
        assert reason in harness.error().body.decode()

    def test_a_body_is_refused(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed("ACK\nid:1-1\n\nbody\0")
        assert "ACK must not have a body" in harness.error().body.decode()


class TestReject:
    def test_is_cumulative_with_client(self, harness):
        harness.connect()
        harness.subscribe(ack="client")
        harness.deliver("1", 7, 8, 9)
        harness.feed("NACK\nid:1-8\nreceipt:r\n\n\0")
        assert harness.connection.take() == [("reject", "1", [7, 8], "r", None)]

    def test_comes_after_the_acks_before_it(self, harness):
        harness.connect()
        harness.subscribe()
        harness.feed("ACK\nid:1-7\n\n\0NACK\nid:1-8\n\n\0")
        assert [c[0] for c in harness.connection.take()] == ["acknowledge", "reject"]

    def test_does_not_exist_in_1_0(self, harness):
        harness.connect("1.0")
        harness.feed("NACK\nmessage-id:st0re-1\n\n\0")
        assert "1.0 has no NACK" in harness.error().body.decode()


class TestTransactions:
    def test_every_step_reaches_the_broker(self, harness):
        harness.connect()
        harness.subscribe(ack="client")
        harness.deliver("1", 7, 8)
        harness.feed(
            "BEGIN\ntransaction:t\nreceipt:b\n\n\0"
            "SEND\ndestination:/queue/a\ntransaction:t\n\n\0"
            "ACK\nid:1-7\ntransaction:t\n\n\0"
            "NACK\nid:1-8\ntransaction:t\n\n\0"
            "COMMIT\ntransaction:t\nreceipt:c\n\n\0"
        )
        calls = harness.connection.take()
        assert calls[:2] == [("begin", "t"), ("synchronize", "b")]
        assert (calls[2][0], *calls[2][2:]) == ("publish", None, "t")
        assert calls[3:] == [
            ("acknowledge", "1", [7], None, "t"),
            ("reject", "1", [8], None, "t"),
            ("commit", "t", "c"),
        ]

    def test_abort_puts_acknowledged_messages_back_into_the_books(self, harness):
        harness.connect()
        harness.subscribe(ack="client")
        harness.deliver("1", 7, 8, 9)
        harness.feed(
            "BEGIN\ntransaction:t\n\n\0ACK\nid:1-8\ntransaction:t\n\n\0ABORT\ntransaction:t\nreceipt:a\n\n\0"
        )
        harness.feed("ACK\nid:1-9\n\n\0")
        assert harness.connection.take() == [
            ("begin", "t"),
            ("acknowledge", "1", [7, 8], None, "t"),
            ("abort", "t", "a"),
            ("acknowledge", "1", [7, 8, 9]),
        ]

    def test_several_are_open_at_once_up_to_the_limit(self, make_harness):
        harness = make_harness(StompOptions(transactions_max=2))
        harness.connect()
        harness.feed(
            "BEGIN\ntransaction:a\n\n\0BEGIN\ntransaction:b\n\n\0COMMIT\ntransaction:a\n\n\0"
        )
        harness.feed("BEGIN\ntransaction:c\n\n\0")
        assert harness.frames() == []
        harness.feed("BEGIN\ntransaction:d\n\n\0")
        assert "2 open transactions" in harness.error().body.decode()

    @pytest.mark.parametrize("command", ["BEGIN", "COMMIT", "ABORT"])
    def test_need_a_name(self, harness, command):
        harness.connect()
        harness.feed(f"{command}\n\n\0")
        assert f"{command} needs a non-empty transaction header" in harness.error().body.decode()

    @pytest.mark.parametrize("command", ["ACK", "NACK"])
    def test_an_unknown_one_is_refused(self, harness, command):
        harness.connect()
        harness.subscribe()
        harness.feed(f"{command}\nid:1-1\ntransaction:t\n\n\0")
        assert "there is no open transaction 't'" in harness.error().body.decode()
