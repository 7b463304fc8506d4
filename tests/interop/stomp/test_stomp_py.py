"""stomp.py against the running gateway: every version, acknowledgement mode and transaction."""

from __future__ import annotations

from typing import Any

import pytest
import stomp
from stomp_recorder import Recorder
from stomp_recorder import stomp_connect as connect

pytestmark = pytest.mark.interop
WAIT_S = 60.0
VERSIONS = [stomp.Connection10, stomp.Connection11, stomp.Connection12]


def acknowledge(connection: Any, frame: Any, version: Any) -> None:
    if version is stomp.Connection12:
        connection.ack(frame.headers["ack"])
    elif version is stomp.Connection11:
        connection.ack(frame.headers["message-id"], frame.headers["subscription"])
    else:
        connection.ack(frame.headers["message-id"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_send_receipt_deliver_acknowledge(gateway, version, mode) -> None:
    name = f"/queue/{version.__name__}.{mode}"
    connection, recorder = connect(gateway, version)
    connection.subscribe(name, id="1", ack=mode)
    for number in range(10):
        connection.send(name, bytes([number]) + b"\x00\xff body", receipt=f"r{number}")
    assert [recorder.receipts.get(timeout=WAIT_S) for _ in range(10)] == [
        f"r{n}" for n in range(10)
    ]
    frames = [recorder.messages.get(timeout=WAIT_S) for _ in range(10)]
    assert [frame.body for frame in frames] == [bytes([n]) + b"\x00\xff body" for n in range(10)]
    if mode == "client":
        acknowledge(connection, frames[-1], version)  # cumulative
    elif mode == "client-individual":
        for frame in frames:
            acknowledge(connection, frame, version)
    connection.disconnect(receipt="bye")
    assert recorder.receipts.get(timeout=WAIT_S) == "bye"
    again, other = connect(gateway)
    again.subscribe(name, id="1", ack="auto")
    again.send(name, b"last")
    assert other.messages.get(timeout=WAIT_S).body == b"last", "something was delivered twice"
    again.disconnect()


@pytest.mark.parametrize("version", VERSIONS)
def test_headers_arrive_unchanged(gateway, version) -> None:
    connection, recorder = connect(gateway, version)
    name = f"/queue/headers.{version.__name__}"
    wanted = {"app-key": "plain", "with-dash_under": "a b  c", "ünïcode": "žluťoučký"}
    if version is not stomp.Connection10:
        wanted["odd"] = "line\nbreak:colon\\backslash"
    connection.subscribe(name, id="1", ack="auto")
    connection.send(name, b"x", headers=wanted, content_type="text/x-test")
    frame = recorder.messages.get(timeout=WAIT_S)
    assert {key: frame.headers.get(key) for key in wanted} == wanted
    assert frame.headers["content-type"] == "text/x-test"
    connection.disconnect()


def test_a_transaction_is_delivered_only_after_commit(gateway) -> None:
    connection, recorder = connect(gateway)
    name = "/queue/transaction"
    connection.subscribe(name, id="1", ack="client-individual")
    kept, dropped = connection.begin(), connection.begin()
    connection.send(name, b"dropped", transaction=dropped)
    connection.send(name, b"kept", transaction=kept)
    connection.send(name, b"outside", receipt="r")
    recorder.receipts.get(timeout=WAIT_S)
    frame = recorder.messages.get(timeout=WAIT_S)
    assert frame.body == b"outside"
    connection.ack(frame.headers["ack"])
    connection.abort(dropped)
    connection.commit(kept, receipt="c")
    assert recorder.receipts.get(timeout=WAIT_S) == "c"
    frame = recorder.messages.get(timeout=WAIT_S)
    assert frame.body == b"kept"
    connection.ack(frame.headers["ack"], receipt="a")
    recorder.receipts.get(timeout=WAIT_S)
    assert recorder.messages.empty()
    connection.disconnect()


def test_a_rejected_message_comes_back_marked_and_ends_as_dead_letter(gateway) -> None:
    connection, recorder = connect(gateway)
    connection.subscribe("/queue/poison", id="1", ack="client-individual")
    connection.subscribe("/queue/DLQ.poison", id="2", ack="auto")
    connection.send("/queue/poison", b"bad")
    for attempt in range(6):
        frame = recorder.messages.get(timeout=WAIT_S)
        assert frame.headers["subscription"] == "1"
        assert (frame.headers.get("redelivered") == "true") == (attempt > 0)
        connection.nack(frame.headers["ack"])
    frame = recorder.messages.get(timeout=WAIT_S)
    assert (frame.headers["subscription"], frame.body) == ("2", b"bad")
    assert frame.headers["original-destination"] == "queue://poison"
    connection.disconnect()


def test_what_a_lost_consumer_held_goes_to_the_next_one(gateway) -> None:
    producer, _ = connect(gateway)
    first, recorder = connect(gateway)
    first.subscribe("/queue/lost", id="1", ack="client-individual")
    for number in range(5):
        producer.send("/queue/lost", str(number).encode())
    ids = [recorder.messages.get(timeout=WAIT_S).headers["message-id"] for _ in range(5)]
    first.transport.disconnect_socket()  # without DISCONNECT
    second, other = connect(gateway)
    second.subscribe("/queue/lost", id="1", ack="client")
    frames = [other.messages.get(timeout=WAIT_S) for _ in range(5)]
    assert [frame.headers["message-id"] for frame in frames] == ids
    assert all(frame.headers["redelivered"] == "true" for frame in frames)
    second.ack(frames[-1].headers["ack"])
    second.disconnect(receipt="d")
    other.receipts.get(timeout=WAIT_S)
    producer.disconnect()


def test_a_durable_topic_subscription_keeps_what_comes_while_it_is_away(gateway) -> None:
    headers = {"client-id": "durable-client"}
    connection = stomp.Connection12([("127.0.0.1", gateway.stomp_port)], auto_decode=False)
    connection.connect(wait=True, headers=headers)
    connection.subscribe(
        "/topic/news.*", "1", "client", headers={"activemq.subscriptionName": "news"}
    )
    connection.disconnect(receipt="x")
    producer, recorder = connect(gateway)
    producer.send("/topic/news.sport", b"goal", receipt="r")
    recorder.receipts.get(timeout=WAIT_S)
    connection = stomp.Connection12([("127.0.0.1", gateway.stomp_port)], auto_decode=False)
    back = Recorder()
    connection.set_listener("recorder", back)
    connection.connect(wait=True, headers=headers)
    connection.subscribe(
        "/topic/news.*", "1", "client", headers={"activemq.subscriptionName": "news"}
    )
    frame = back.messages.get(timeout=WAIT_S)
    assert (frame.body, frame.headers["destination"]) == (b"goal", "/topic/news.sport")
    connection.ack(frame.headers["ack"])
    connection.disconnect()
    producer.disconnect()


def test_heart_beats_keep_an_idle_connection(gateway) -> None:
    # A machine that stalls for longer than the beats are apart ends it rightly: then once more.
    for _ in range(3):
        connection, recorder = connect(gateway, heartbeats=(500, 500))
        if not recorder.disconnected.wait(3.0):
            break
    assert connection.is_connected()
    connection.disconnect()


def test_a_refused_operation_is_told_and_closes_only_that_connection(gateway) -> None:
    connection, recorder = connect(gateway)
    neighbour, other = connect(gateway)
    connection.send("/nowhere/at-all", b"x", receipt="r7")
    error = recorder.errors.get(timeout=WAIT_S)
    assert error.headers["receipt-id"] == "r7"
    assert b"/queue/" in error.body, "the error must say what to write instead"
    assert recorder.disconnected.wait(WAIT_S)
    neighbour.send("/queue/fine", b"x", receipt="ok")
    assert other.receipts.get(timeout=WAIT_S) == "ok"
    neighbour.disconnect()


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_answered_through_a_temporary_destination(gateway, version, kind) -> None:
    asking, answers = connect(gateway, version)
    answering, requests = connect(gateway)
    service = f"/queue/service.{kind}.{version.__name__}"
    own = f"/temp-{kind}/answers"
    answering.subscribe(service, id="1", ack="auto")
    asking.subscribe(own, id="a", ack="auto", headers={"receipt": "s"})
    assert answers.receipts.get(timeout=WAIT_S) == "s"
    asking.send(service, b"question", headers={"reply-to": own, "correlation-id": "c-7"})
    request = requests.messages.get(timeout=WAIT_S)
    reply_to = request.headers["reply-to"]
    assert reply_to.startswith(f"/{kind}/$temporary.")
    answering.send(
        reply_to, b"answer", headers={"correlation-id": request.headers["correlation-id"]}
    )
    answer = answers.messages.get(timeout=WAIT_S)
    assert (answer.body, answer.headers["correlation-id"]) == (b"answer", "c-7")
    assert answer.headers["subscription"] == "a"
    eavesdropper, other = connect(gateway)
    eavesdropper.subscribe(reply_to, id="1", ack="auto")
    refused = other.errors.get(timeout=WAIT_S)
    assert b"only the connection that created" in refused.body
    asking.disconnect(receipt="bye")
    assert answers.receipts.get(timeout=WAIT_S) == "bye"
    assert answers.disconnected.wait(WAIT_S)
    late, told = connect(gateway)
    late.send(reply_to, b"too late", receipt="r")
    gone = told.errors.get(timeout=WAIT_S)
    assert (gone.headers["receipt-id"], b"has ended" in gone.body) == ("r", True)
    answering.disconnect()


@pytest.mark.parametrize("version", VERSIONS)
def test_browsing_shows_copies_and_ends(gateway, version) -> None:
    name = f"/queue/browsed.{version.__name__}"
    connection, recorder = connect(gateway, version)
    wanted = [str(number).encode() for number in range(250)]
    for body in wanted:
        connection.send(name, body)
    for round_number in ("1", "2"):
        connection.subscribe(name, id=round_number, ack="auto", headers={"browser": "true"})
        frames = [recorder.messages.get(timeout=WAIT_S) for _ in range(len(wanted) + 1)]
        assert [frame.body for frame in frames[:-1]] == wanted
        assert frames[-1].headers["browser"] == "end"
        assert {frame.headers["subscription"] for frame in frames} == {round_number}
        connection.unsubscribe(id=round_number)
    connection.subscribe(name, id="3", ack="auto")
    frames = [recorder.messages.get(timeout=WAIT_S) for _ in wanted]
    assert [frame.body for frame in frames] == wanted
    assert all("redelivered" not in frame.headers for frame in frames)
    connection.disconnect()


def test_headers_that_others_act_upon_arrive_as_they_were_sent(gateway) -> None:
    connection, recorder = connect(gateway)
    wanted = {
        "type": "order",
        "JMSXGroupID": "g",
        "AMQ_SCHEDULED_DELAY": "5000",
        "_AMQ_DUPL_ID": "d-1",
        "selector": "a = 1",
        "destination-type": "ANYCAST",
        "timestamp": "1700000000000",
        "priority": "9",
        "persistent": "false",
        "expires": "4000000000000",
        "correlation-id": "c",
        "reply-to": "/queue/answers",
    }
    connection.subscribe("bare", id="1", ack="auto", headers={"subscription-type": "ANYCAST"})
    connection.send("bare", b"x", headers=wanted)
    frame = recorder.messages.get(timeout=WAIT_S)
    assert {key: frame.headers.get(key) for key in wanted} == wanted
    assert frame.headers["destination"] == "bare"
    connection.disconnect()


def test_a_selector_chooses_from_a_queue_that_others_share(gateway) -> None:
    connection, recorder = connect(gateway)
    name = "/queue/selected"
    for number in range(1000):
        kind = "wanted" if number % 250 == 7 else "other"
        connection.send(name, str(number), headers={"kind": kind, "my-number": str(number)})
    selector = "kind = 'wanted' AND \"my-number\" >= 257"
    connection.subscribe(name, id="1", ack="client-individual", headers={"selector": selector})
    frames = [recorder.messages.get(timeout=WAIT_S) for _ in range(3)]
    assert [frame.body for frame in frames] == [b"257", b"507", b"757"]
    for frame in frames:
        acknowledge(connection, frame, stomp.Connection12)
    connection.disconnect(receipt="bye")
    assert recorder.receipts.get(timeout=WAIT_S) == "bye"
    again, other = connect(gateway)
    again.subscribe(name, id="1", ack="auto")
    rest = [int(other.messages.get(timeout=WAIT_S).body) for _ in range(997)]
    assert rest == [n for n in range(1000) if n not in (257, 507, 757)]
    again.disconnect()


def test_a_selector_that_cannot_be_read_is_an_error(gateway) -> None:
    connection, recorder = connect(gateway)
    connection.subscribe("/queue/a", id="1", ack="auto", headers={"selector": "kind =="})
    frame = recorder.errors.get(timeout=WAIT_S)
    assert "column 7" in frame.headers["message"]
