"""The properties of PUBLISH in MQTT 5.0 (section 3.3.2.3)."""

import pytest
from mqtt_clauses import proves
from mqtt_raw import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    ack,
    packet,
    publish,
    text,
)

USER = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ü", "\U0001f600"), ("a", "1")]


def subscriber_of(dial, name, **options):
    client = dial(V5, connect=f"{name}s", **options)
    client.subscribe(f"{name}/#", 2)
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("prop", "value"),
    [
        pytest.param("payload_format", 0, marks=proves("5.0", "3.3.2-4")),
        pytest.param("payload_format", 1, marks=proves("5.0", "3.3.2-4")),
        pytest.param("content_type", "text/plain; x=ü", marks=proves("5.0", "3.3.2-20")),
        pytest.param("content_type", "", marks=proves("5.0", "3.3.2-20")),
        pytest.param("response_topic", "a.b/c/ü", marks=proves("5.0", "3.3.2-15")),
        pytest.param("correlation_data", bytes(range(256)), marks=proves("5.0", "3.3.2-16")),
        pytest.param("correlation_data", b"", marks=proves("5.0", "3.3.2-16")),
        pytest.param("user_property", USER, marks=proves("5.0", "3.3.2-17 3.3.2-18")),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_property_reaches_subscribers_unaltered(dial, name, qos, prop, value):
    client = subscriber_of(dial, name)
    publisher = dial(V5, connect=name)
    publisher.publish(f"{name}/a", b"x", qos=qos, packet_id=1, **{prop: value})
    assert client.takes().props == {prop: value}


EMPTY = {"payload_format": 0, "content_type": "", "correlation_data": b""}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            {
                "payload_format": 1,
                "content_type": "text/plain",
                "correlation_data": b"\x00\xff",
                "user_property": USER,
            },
            id="full",
        ),
        pytest.param(EMPTY, id="empty"),
    ],
)
@proves("5.0", "3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
def test_properties_reach_subscribers_also_from_the_store(dial, name, start_gateway, said):
    gateway = start_gateway()
    given = said | {"response_topic": f"{name}/answers"}
    away = {"clean": False, "session_expiry": 1000, "gateway": gateway}
    client = subscriber_of(dial, name, **away)
    client.drop()
    publisher = dial(V5, connect=name, gateway=gateway)
    publisher.publishes(f"{name}/a", b"queued", 1, **given)
    publisher.publishes(f"{name}/b", b"retained", 1, retain=True, **given)
    publisher.drop()
    gateway.restart()
    client = dial(V5, connect=f"{name}s", **away)
    assert [(m.body, m.props) for m in (client.takes(), client.takes())] == [
        (b"queued", given),
        (b"retained", given),
    ]
    late = dial(V5, connect=f"{name}l", gateway=gateway)
    late.subscribe(f"{name}/b")
    assert late.message().props == given


def test_subscribers_of_3_1_1_get_the_message_without_properties(dial, name):
    client = dial(V311, connect=f"{name}s")
    client.subscribe(name)
    dial(V5, connect=name).publish(name, b"x", content_type="t", user_property=USER)
    assert client.message().raw == packet(0x30, text(name) + b"x")


@pytest.mark.parametrize("topic", ["#", "a/+", "a#"])
@proves("5.0", "3.3.2-14 4.13.1-1")
def test_a_response_topic_has_no_wildcard(dial, name, topic):
    client = dial(V5, connect=name)
    client.publish(name, b"x", qos=1, packet_id=1, response_topic=topic)
    assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


# ---------------------------------------------------------------------------------------- expiry


def wait_for_expiry(dial, name, seconds=1):
    """Return when so many seconds have passed: a will that waits that long has come."""
    observer = dial(connect=f"{name}clock")
    observer.subscribe(f"{name}clock")
    dial(
        V5, connect=f"{name}clock2", session_expiry=1000,
        will=(f"{name}clock", b""), will_properties={"will_delay": seconds},
    ).drop()  # fmt: skip
    observer.message()


@proves("5.0", "3.3.2-5")
def test_a_message_that_expired_while_its_session_was_away_is_not_delivered(dial, name):
    away = {"clean": False, "session_expiry": 1000}
    client = subscriber_of(dial, name, **away)
    client.drop()
    publisher = dial(V5, connect=name)
    publisher.publishes(f"{name}/a", b"short", message_expiry=1)
    publisher.publishes(f"{name}/a", b"long", message_expiry=1000)
    wait_for_expiry(dial, name)
    client = dial(V5, connect=f"{name}s", **away)
    message = client.takes()
    assert message.body == b"long"
    assert 900 < message.props["message_expiry"] <= 999  # a second at least is gone
    assert client.is_passed_over(publisher)


@proves("5.0", "3.3.2-5 3.3.2-6")
def test_a_retained_message_expires_too(dial, name):
    publisher = dial(V5, connect=name)
    publisher.publishes(f"{name}/short", b"x", retain=True, message_expiry=1)
    publisher.publishes(f"{name}/long", b"x", retain=True, message_expiry=1000)
    wait_for_expiry(dial, name)
    client = subscriber_of(dial, name)
    message = client.message()
    assert message.topic == f"{name}/long"
    assert 900 < message.props["message_expiry"] <= 999
    assert client.is_passed_over(publisher)


@proves("5.0", "3.3.2-6")
def test_the_expiry_interval_is_passed_on(dial, name):
    client = subscriber_of(dial, name)
    dial(V5, connect=name).publishes(f"{name}/a", b"x", message_expiry=1000)
    assert 900 < client.takes().props["message_expiry"] <= 1000


@proves("5.0", "4.3.3-7 4.3.3-13")
def test_what_was_sent_before_it_expired_is_completed(dial, name):
    kept = {"clean": False, "session_expiry": 1000}
    client = subscriber_of(dial, name, **kept)
    publisher = dial(V5, connect=name)
    publisher.publishes(f"{name}/a", b"1", 1, message_expiry=3)  # time enough to be sent
    publisher.publishes(f"{name}/a", b"2", 2, message_expiry=3)
    first = [client.message() for _ in range(2)]
    client.drop()
    wait_for_expiry(dial, name, seconds=3)
    client = dial(V5, connect=f"{name}s", **kept)
    again = [client.message() for _ in range(2)]
    assert [(m.body, m.packet_id, m.dup) for m in again] == [
        (m.body, m.packet_id, True) for m in first
    ]
    client.send(ack(PUBACK, again[0].packet_id), ack(PUBREC, again[1].packet_id))
    assert client.receive(PUBREL).packet_id == again[1].packet_id
    client.send(ack(PUBCOMP, again[1].packet_id))
    assert client.is_passed_over(publisher)


@proves("5.0", "4.3.3-13")
def test_a_publisher_completes_its_exchange_also_when_the_message_expired(dial, name):
    publisher = dial(V5, connect=name)
    publisher.publish(f"{name}/a", b"x", qos=2, packet_id=3, message_expiry=1)
    assert publisher.receive(PUBREC).packet_id == 3
    wait_for_expiry(dial, name)
    publisher.send(ack(PUBREL, 3))
    answer = publisher.receive(PUBCOMP)
    assert (answer.packet_id, answer.code) == (3, 0)


def test_publish_with_an_empty_property_block_is_the_shortest_form(dial, name):
    client = subscriber_of(dial, name)
    dial(V5, connect=name).send(publish(f"{name}/a", b"x", version=V5))
    assert client.message().raw == packet(0x30, text(f"{name}/a") + b"\x00x")


@pytest.mark.parametrize("qos", [1, 2])
@proves("5.0", "3.4.2-1 3.5.2-1")
def test_a_payload_that_is_not_what_it_says_is_refused_with_0x99(dial, name, qos):
    client = dial(V5, connect=name)
    client.publish(name, b"\xff", qos=qos, packet_id=1, payload_format=1)
    answer = client.receive(PUBACK if qos == 1 else PUBREC)
    assert (answer.packet_id, answer.code) == (1, 0x99)


@pytest.mark.parametrize("code", [0x9C, 0x9D])
@proves("5.0", "3.2.2-7 3.2.2-8")
def test_a_gateway_that_moved_says_where_to(dial, name, code, start_gateway):
    how = {0x9C: "use_another", 0x9D: "moved"}[code]
    gateway = start_gateway(
        f'''[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
server_redirect = "{how}"
server_reference = "other.example:1883"
'''
    )
    client = dial(V5, gateway=gateway)
    answer = client.connect(name)
    assert (answer.code, answer.props["server_reference"]) == (code, "other.example:1883")
    assert client.is_closed()
    older = dial(gateway=gateway)
    assert older.connect(name).raw == b"\x20\x02\x00\x03"
    assert older.is_closed()
