"""What a client of MQTT 3.1.1 publishes: confirmed when it is durable, refused, known already.

What the broker does with a call is its own test; here counts what is asked of it, when, and what
the client hears before and after it is durable.
"""

import pytest
from mqtt_session import IN, LOST, RECEIVED

from tidegate.spi import (
    AccessError,
    InflightRecord,
    RequestError,
    StoreFullError,
)
from tidegate_protocols.mqtt import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from tidegate_protocols.mqtt.session.session import CONNECT_BYTES_MAX

# ------------------------------------------------------------------------------------ receiving


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_becomes_a_message(client, qos):
    client.sends(Publish("sensors/t.1", b"\x00\xff", qos, 7 if qos else 0))
    ((message, inflight),) = client.connection.take("publish")
    assert (message.destination, message.body) == ("topic://sensors.t/1", b"\x00\xff")
    assert (message.qos, message.persistent, message.retain) == (qos, qos > 0, False)
    assert (message.protocol, message.client_id) == ("mqtt", "dev")
    assert message.received_at == 1_000_000_000
    assert inflight is None


def test_puback_leaves_only_when_the_message_is_durable(client):
    client.sends(Publish("a", b"1", 1, 1), Publish("a", b"2", 0), Publish("a", b"3", 1, 2))
    assert len(client.connection.take("publish")) == 3
    assert client.gets() == []
    client.durable()
    assert len(client.link.sent) == 1  # one write for all of a turn
    assert client.gets() == [Puback(1), Puback(2)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_marked_so(client, qos):
    client.sends(Publish("a", b"", qos, 1 if qos else 0, True))
    ((message, _),) = client.connection.take("publish")
    assert message.retain is True
    client.durable()
    assert client.gets() == [[], [Puback(1)], [Pubrec(1)]][qos]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_queue_is_reached_by_its_topic_form_and_retains_nothing(client, qos):
    client.sends(Publish("$queue/orders/new", b"x", qos, 1 if qos else 0, True))
    ((message, _),) = client.connection.take("publish")
    assert (message.destination, message.retain) == ("queue://orders.new", False)


def test_qos_2_comes_in_exactly_once(client):
    publish = Publish("a", b"x", 2, 7)
    client.sends(publish)
    assert client.gets() == []
    client.sends(Publish("a", b"x", 2, 7, False, True))  # [MQTT-4.3.3-2]
    assert len(client.connection.take("publish")) == 1
    assert client.gets() == []  # the first one is not durable yet
    client.durable()
    assert client.gets() == [Pubrec(7), Pubrec(7)]
    client.sends(Pubrel(7), Pubrel(7))
    client.durable()
    assert client.gets() == [Pubcomp(7), Pubcomp(7)]
    client.sends(publish)  # the id is free again: another message
    assert len(client.connection.take("publish")) == 1


def test_a_persistent_session_remembers_the_id_with_the_message(make_client):
    client = make_client()
    client.connects(clean_session=False)
    client.sends(Publish("a", b"x", 2, 7))
    ((_, record),) = client.connection.take("publish")
    assert record == InflightRecord("dev", IN, 7, RECEIVED)
    client.durable()
    assert client.gets() == [Pubrec(7)]
    client.sends(Pubrel(7))
    assert client.connection.take("record_inflight") == [([], [(IN, 7)])]
    assert client.gets() == []  # PUBCOMP frees the id, so forgetting it must be durable first
    client.durable()
    assert client.gets() == [Pubcomp(7)]


def test_a_resumed_session_knows_what_it_has_received(make_client, broker):
    broker.session_present = True
    broker.inflight = [InflightRecord("dev", IN, 7, RECEIVED)]
    client = make_client(broker)
    client.connects(clean_session=False)
    client.sends(Publish("a", b"x", 2, 7, False, True), Publish("a", b"y", 2, 8))
    ((message, _),) = client.connection.take("publish")
    assert message.body == b"y"
    client.durable()
    assert client.gets() == [Pubrec(7), Pubrec(8)]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    "error", [AccessError("no"), StoreFullError("no room"), RequestError("bad name")]
)
def test_a_refused_publish_closes_the_connection_without_an_acknowledgement(client, qos, error):
    client.connection.errors["publish"] = error  # [MQTT-3.3.5-2]
    client.sends(Publish("a", b"", qos, 1 if qos else 0), Pingreq())
    assert client.link.is_closing
    assert client.gets() == []
    assert client.connection.take("disconnect") == [LOST]


@pytest.mark.parametrize("topic", ["$SYS/x", "$share/g/a", "$queue/"])
def test_a_topic_of_the_gateway_closes_the_connection(client, topic):
    client.sends(Publish(topic, b""))
    assert client.link.is_closing
    assert client.connection.take("publish") == []


def test_what_came_before_a_broken_packet_counts(client):
    client.sends(Publish("a", b"x"), b"\x30\x03\x00\x01#")
    assert len(client.connection.take("publish")) == 1
    assert client.link.is_closing  # [MQTT-4.8.0-1]
    assert client.connection.take("disconnect") == [LOST]


def test_a_packet_over_the_limit_closes_the_connection(make_client):
    client = make_client(packet_bytes_max=1024)
    client.connects()
    client.sends(Publish("a", b"x" * 1021))
    assert not client.link.is_closing
    client.sends(Publish("a", b"x" * 1022))
    assert client.link.is_closing


def test_after_connect_the_listeners_limit_counts(client):
    client.sends(Publish("a", b"x" * (CONNECT_BYTES_MAX + 1)))
    assert len(client.connection.take("publish")) == 1
    assert not client.link.is_closing


def test_a_failure_that_comes_later_closes_the_connection_without_the_puback(client):
    client.sends(Publish("a", b"x", 1, 1))
    client.session.failed(client.connection.tokens[0], StoreFullError("no room"))
    assert client.link.is_closing
    # The broker is not called back from inside of its own call.
    assert client.connection.take("disconnect") == []
    client.runtime.advance(0)
    assert client.connection.take("disconnect") == [LOST]
    client.durable()
    client.hangs_up()
    assert client.gets() == []
    assert client.connection.take("disconnect") == []


def test_a_ping_is_answered(client):
    client.sends(Pingreq(), Pingreq())  # [MQTT-3.12.4-1]
    assert client.gets() == [Pingresp(), Pingresp()]
