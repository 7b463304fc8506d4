"""A lane of the process: what it says, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from paho.mqtt.client import MQTTMessage

from tidegate.spi import Message
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._options import Direction, JmsType
from tidegate_bridge.remote.lane import Broken, Confirmed, LaneError, Subscribed
from tidegate_bridge.remote.link import Link
from tidegate_bridge.remote.mqtt_lane import MqttLane, _Heard


class Said:
    """In the place of the link."""

    def __init__(self) -> None:
        self.told: list[protocol.FromProcess] = []

    def send(self, told: protocol.FromProcess) -> None:
        self.told.append(
            protocol.decode_from_process(protocol.frame(told)[protocol.LENGTH_BYTES :])
        )


def start(**changed: Any) -> protocol.Start:
    rule = protocol.Rule("in", Direction.IN, "a/#", "queue://a", "", "", JmsType.AUTO, {}, False)
    known: dict[str, Any] = {
        "name": "old", "here": "s/old", "store": "s", "scheme": "mqtt", "host": "h", "port": 1, "user": "", "password": "", "ca": "",
        "certificate": "", "key": "", "virtual_host": "", "client_id": "c", "is_mqtt_5": True, "window": 2, "window_bytes": 1000,
        "message_limit": 100, "connect_timeout": 1.0, "reconnect_min": 1.0, "reconnect_max": 1.0, "hops_max": 2, "rules": {0: rule},
    }  # fmt: skip
    return protocol.Start(**known | changed)


def lane_and_heard() -> tuple[MqttLane, Any, Said]:
    said = Said()
    lane = MqttLane(start(), 0, cast("Link", said))
    lane.epoch = 3
    return lane, _Heard(lane), said


def publish(topic: str = "a/b", body: bytes = b"hi", mid: int = 1) -> MQTTMessage:
    found = MQTTMessage(mid, topic.encode())
    found.payload, found.qos = body, 1
    return found


CONNECTED = (SimpleNamespace(session_present=True), SimpleNamespace(is_failure=False), None)


def test_what_waits_in_a_session_comes_behind_the_word_that_it_is_connected() -> None:
    """Or the gateway, which has not heard of this attempt, would drop it, and nobody would give it again."""
    _, heard, said = lane_and_heard()
    heard._connected(None, None, *CONNECTED)
    heard._message(None, None, publish())
    ready, brought = said.told
    assert isinstance(ready, protocol.Ready)
    assert isinstance(brought, protocol.Bring)
    assert (ready.epoch, brought.epoch, brought.message.body) == (3, 3, b"hi")


def test_a_message_that_is_too_large_or_not_covered_ends_the_attempt() -> None:
    for wrong in (publish(body=b"x" * 101), MQTTMessage(1, b"")):
        lane, heard, said = lane_and_heard()
        if not wrong.payload:
            lane.names.arriving = lambda remote: None  # type: ignore[method-assign]
        heard._message(None, None, wrong)
        heard._message(None, None, publish())
        assert said.told == []
        event = lane.inbox.get_nowait()
        assert isinstance(event, Broken)
        assert event.remedy


def test_a_circle_ends_at_a_topic_with_an_acknowledgement_and_at_a_queue_with_an_error() -> None:
    lane, heard, said = lane_and_heard()
    heard._message(None, None, publish())
    lane.hops.next = lambda headers: None  # type: ignore[method-assign]
    heard._message(None, None, publish(mid=2))
    assert lane.inbox.get_nowait() == Subscribed(3, is_certain=False)
    done = lane.inbox.get_nowait()
    assert isinstance(done, protocol.Done)
    assert (done.numbers, done.looped, len(said.told)) == ([2], 1, 1)
    assert heard.pending[2][0] == 2


class Sending(MqttLane):
    """A lane whose other broker is a list."""

    def send(self, take: protocol.Take, more: Any) -> None:
        self._sent[take.number] = take.number


def test_what_was_sent_before_a_message_that_may_not_go_is_confirmed_before_the_attempt_ends() -> (
    None
):
    """Or it would be sent again with each attempt, and never be acknowledged."""
    rule = protocol.Rule(
        "out", Direction.OUT, "a/#", "queue://a.>", "", "", JmsType.AUTO, {}, False
    )
    said = Said()
    lane = Sending(start(rules={0: rule}), 0, cast("Link", said))
    lane.connect = lambda: None  # type: ignore[method-assign]
    for number, size in ((1, 1), (2, 101), (3, 1)):
        message = Message("queue://a.b", b"x" * size)
        lane.inbox.put(protocol.Take(0, 0, number, message))
    lane.inbox.put(Confirmed(0, 1))
    with pytest.raises(LaneError, match="message_limit") as caught:
        lane._attempt()
    assert caught.value.refused == 2
    (done,) = said.told
    assert isinstance(done, protocol.Done)
    assert done.numbers == [1]


def test_it_flows_when_the_other_broker_has_confirmed_the_subscription_and_not_before() -> None:
    lane, heard, said = lane_and_heard()
    lane.connect = lambda: heard._connected(None, None, *CONNECTED)  # type: ignore[method-assign]
    lane.consume = lambda: heard._message(None, None, publish())  # type: ignore[method-assign]
    ended = protocol.Stop(0, 3, "enough", "")
    lane.inbox.put(ended)
    with pytest.raises(LaneError, match="enough"):
        lane._attempt()
    # What waited in a session comes by a subscription of its own, perhaps.
    assert [type(one).__name__ for one in said.told] == ["Ready", "Bring"]
    said.told.clear()
    for reasons in ([SimpleNamespace(value=1)], [SimpleNamespace(value=0)]):
        heard._subscribed(None, None, 1, reasons, None)
    lane.inbox.put(ended)
    with pytest.raises(LaneError, match="enough"):
        lane._attempt()
    assert [type(one).__name__ for one in said.told] == ["Ready", "Bring", "Flows"]


def test_a_subscription_that_is_never_confirmed_ends_the_attempt() -> None:
    lane, heard, _ = lane_and_heard()
    lane.start = start(connect_timeout=0.01)
    lane.connect = lane.consume = lambda: None  # type: ignore[method-assign]
    with pytest.raises(LaneError, match="does not confirm that 'a/#' is subscribed to"):
        lane._attempt()
    heard._subscribed(None, None, 1, [SimpleNamespace(value=0x87)], None)
    with pytest.raises(LaneError, match="refuses to subscribe to 'a/#'"):
        lane._attempt()
