"""Wills (sections 3.1.2.5 to 3.1.2.7 and 3.14.4)."""

import time

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import DISCONNECT, V5, disconnect, packet


@pytest.fixture
def observer(dial, name):
    client = dial(V5, connect=f"{name}o")
    client.subscribe(f"{name}/will", 2)
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
@both("3.1.2-8 3.1.2-9 3.1.2-14", "3.1.2-7 3.1.2-8 3.1.2-9 3.1.2-12")
def test_a_will_is_published_when_the_connection_fails(dial, name, version, observer, qos):
    client = dial(version, connect=name, will=(f"{name}/will", b"gone"), will_qos=qos)
    assert observer.is_quiet()
    client.drop()
    will = observer.takes()
    assert (will.topic, will.body, will.qos, will.retain) == (f"{name}/will", b"gone", qos, False)


@both("3.1.2-8 3.1.2-10 3.14.4-3", "3.1.2-8 3.1.2-10 3.14.4-3")
def test_disconnect_drops_the_will(dial, name, version, observer):
    dial(version, connect=name, will=(f"{name}/will", b"gone")).leave()
    assert observer.is_passed_over(dial(connect=f"{name}p"))


@both("3.1.2-10", "3.1.2-10")
def test_a_will_is_published_once(dial, name, version, observer):
    kept = {"clean": False} | ({"session_expiry": 1000} if version == V5 else {})
    dial(version, connect=name, will=(f"{name}/will", b"gone"), **kept).drop()
    assert observer.message().body == b"gone"
    client = dial(version, connect=name, **kept)  # the session, without a will
    client.drop()
    dial(version, connect=name, **kept).leave()
    assert observer.is_passed_over(dial(connect=f"{name}p"))


@proves("3.1.1", "3.1.2-12")
def test_without_a_will_nothing_is_published(dial, name, observer):
    everything = dial(connect=f"{name}e")
    everything.subscribe("#")
    dial(connect=name).drop()
    dial(connect=name, will=(f"{name}/will", b"gone")).leave()
    dial(connect=name).drop()  # the will of an earlier connection is not this one's
    publisher = dial(connect=f"{name}p")
    assert observer.is_passed_over(publisher)
    publisher.publish(name, b"x")
    seen = [everything.message()]
    while seen[-1].topic != name:  # other tests' messages may come
        seen.append(everything.message())
    assert not [m for m in seen if m.topic == f"{name}/will"]


@both("3.1.2-16", "3.1.2-14")
def test_a_will_without_will_retain_is_not_retained(dial, name, version, observer):
    dial(version, connect=name, will=(f"{name}/will", b"gone")).drop()
    assert observer.message().retain is False
    late = dial(connect=f"{name}l")
    late.subscribe(f"{name}/will")
    assert late.is_passed_over(dial(connect=f"{name}p"))


@both("3.1.2-17", "3.1.2-15")
def test_a_will_with_will_retain_is_retained(dial, name, version, observer):
    dial(version, connect=name, will=(f"{name}/will", b"gone"), will_retain=True, will_qos=1).drop()
    assert observer.takes().body == b"gone"
    late = dial(connect=f"{name}l")
    late.subscribe(f"{name}/will", 2)
    message = late.takes()
    assert (message.body, message.qos, message.retain) == (b"gone", 1, True)


@both("3.1.2-8 4.8.0-1", "3.1.2-8 4.13.1-1")
def test_a_will_is_published_when_the_client_breaks_the_protocol(dial, name, version, observer):
    client = dial(version, connect=name, will=(f"{name}/will", b"gone"))
    client.send(packet(0x00))
    if version == V5:
        assert client.receive(DISCONNECT).code == 0x81
    assert client.is_closed()
    assert observer.message().body == b"gone"


@both("3.1.2-8 3.1.4-2", "3.1.2-8 3.1.4-3")
def test_a_will_is_published_when_the_session_is_taken_over_and_ends(dial, name, version, observer):
    dial(version, connect=name, will=(f"{name}/will", b"gone"))
    dial(version, connect=name)
    assert observer.message().body == b"gone"


# ------------------------------------------------------------------------------------ of MQTT 5.0


@proves("5.0", "3.1.2-8 3.14.2-1")
def test_disconnect_4_publishes_the_will(dial, name, observer):
    client = dial(V5, connect=name, will=(f"{name}/will", b"gone"))
    client.send(disconnect(4))
    assert client.is_closed()
    assert observer.message().body == b"gone"


@pytest.mark.parametrize(
    ("payload_format", "content_type", "correlation_data"),
    [(1, "text/plain", b"\x00\xff"), (0, "", b"")],
)
@proves("5.0", "3.1.3-10 3.1.2-7 3.3.2-4 3.3.2-16 3.3.2-18 3.3.2-20")
def test_a_will_has_the_properties_it_was_given(
    dial, name, observer, payload_format, content_type, correlation_data
):
    pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("a", "1")]
    given = {
        "payload_format": payload_format,
        "content_type": content_type,
        "response_topic": f"{name}/answers",
        "correlation_data": correlation_data,
        "user_property": pairs,
    }
    dial(V5, connect=name, will=(f"{name}/will", b"gone"), will_properties=given).drop()
    assert observer.message().props == given


@proves("5.0", "3.3.2-4 3.3.2-16 3.3.2-20")
def test_a_stored_will_has_its_empty_properties_after_a_restart(dial, name, start_gateway):
    gateway = start_gateway()
    given = {"payload_format": 0, "content_type": "", "correlation_data": b""}
    kept = {"clean": False, "session_expiry": 1000, "gateway": gateway}
    observer = dial(V5, connect=f"{name}o", **kept)
    observer.subscribe(f"{name}/will", 1)
    will = {"will": (f"{name}/will", b"gone"), "will_qos": 1}
    delayed = given | {"will_delay": 2}
    dial(V5, connect=name, **kept, **will, will_properties=delayed).drop()
    observer.drop()
    gateway.restart()
    observer = dial(V5, connect=f"{name}o", **kept)
    assert observer.message().props == given


@proves("5.0", "3.1.2-8 3.1.3-9")
def test_a_will_waits_for_its_delay_and_for_the_client(dial, name):
    for delay in (1, 5, 25):
        began, one = time.monotonic(), f"{name}x{delay}"
        observer = dial(connect=f"{one}o")
        observer.subscribe(f"{one}/will")
        options = {
            "clean": False,
            "session_expiry": 1000,
            "will": (f"{one}/will", b"gone"),
            "will_properties": {"will_delay": delay},
        }
        dial(V5, connect=one, **options).drop()
        is_passed_over = observer.is_passed_over(dial(connect=f"{one}p"))
        client = dial(V5, connect=one, **options)
        if time.monotonic() - began < delay:
            break  # back in time; on a machine that was too slow it proves nothing
    assert is_passed_over, "the delay was not over"
    late = dial(V5, connect=f"{one}x", **(options | {"will": (f"{one}/will", b"other")}))
    late.drop()  # its delay ends later than the first one would have
    assert observer.message().body == b"other"
    client.drop()
    assert observer.message().body == b"gone"


@proves("5.0", "3.1.2-8")
def test_a_will_does_not_wait_longer_than_the_session_lasts(dial, name, observer):
    will = {"will": (f"{name}/will", b"gone"), "will_properties": {"will_delay": 1000}}
    dial(V5, connect=name, **will).drop()  # the session ends with the connection
    assert observer.message().body == b"gone"
    dial(V5, connect=name, session_expiry=1, **will).drop()
    assert observer.message().body == b"gone"


@proves("5.0", "3.1.2-8")
def test_a_clean_start_ends_the_session_and_so_publishes_the_waiting_will(dial, name, observer):
    will = {"will": (f"{name}/will", b"gone"), "will_properties": {"will_delay": 1000}}
    dial(V5, connect=name, session_expiry=1000, **will).drop()
    assert observer.is_passed_over(dial(connect=f"{name}p"))
    dial(V5, connect=name, clean=True)
    assert observer.message().body == b"gone"


@proves("5.0", "3.1.2-7")
def test_a_waiting_will_survives_the_gateway(dial, name, start_gateway):
    gateway = start_gateway()
    dial(
        V5, connect=name, gateway=gateway, session_expiry=1000,
        will=(f"{name}/will", b"gone"), will_properties={"will_delay": 1}, will_retain=True,
    ).drop()  # fmt: skip
    gateway.restart()
    observer = dial(V5, connect=f"{name}o", gateway=gateway)
    observer.subscribe(f"{name}/will")
    assert observer.message().body == b"gone"


@pytest.mark.parametrize(
    "properties",
    [{"topic_alias": 1}, {"subscription_id": 1}, {"session_expiry": 1}],
    ids=lambda value: next(iter(value)),
)
@proves("5.0", "3.1.4-1")
def test_a_will_has_only_the_properties_of_a_will(dial, name, properties):
    client = dial(V5)
    answer = client.connect(name, will=("t", b""), will_properties=properties)
    assert answer.code == 0x81
    assert client.is_closed()


@proves("5.0", "3.1.3-9 3.1.4-3")
def test_taking_over_a_session_within_the_delay_keeps_the_will_back(dial, name, observer):
    kept = {"clean": False, "session_expiry": 1000}
    will = {"will": (f"{name}/will", b"gone"), "will_properties": {"will_delay": 1}}
    older = dial(V5, connect=name, **kept, **will)
    newer = dial(V5, connect=name, **kept)
    assert older.receive(DISCONNECT).code == 0x8E
    assert older.is_closed()
    dial(V5, connect=f"{name}x", session_expiry=1000, **will).drop()  # waits as long, later
    assert observer.message().body == b"gone"
    assert observer.is_passed_over(newer)  # it was one, and the other's


@proves("5.0", "3.1.2-8 3.1.4-3")
def test_taking_over_a_session_publishes_a_will_without_delay(dial, name, observer):
    kept = {"clean": False, "session_expiry": 1000}
    older = dial(V5, connect=name, will=(f"{name}/will", b"gone"), **kept)
    newer = dial(V5, connect=name, **kept)
    assert older.receive(DISCONNECT).code == 0x8E
    assert observer.message().body == b"gone"
    assert observer.is_passed_over(newer)


@proves("5.0", "3.1.2-8 3.1.2-10")
def test_disconnect_4_publishes_the_will_after_its_delay(dial, name, observer):
    client = dial(
        V5, connect=name, session_expiry=1000, will=(f"{name}/will", b"gone"),
        will_properties={"will_delay": 1},
    )  # fmt: skip
    client.send(disconnect(4))
    assert client.is_closed()
    assert observer.is_passed_over(dial(connect=f"{name}p"))
    assert observer.message().body == b"gone"


@proves("5.0", "3.1.2-8 3.3.2-5")
def test_a_will_expires_as_other_messages_do(dial, name, observer):
    observer.leave()
    kept = {"clean": False, "session_expiry": 1000}
    away = dial(V5, connect=f"{name}o", **kept)
    away.subscribe(f"{name}/#", 1)
    away.drop()
    for topic, expiry in (("short", 1), ("long", 1000)):
        dial(
            V5, connect=name, will=(f"{name}/{topic}", b""), will_qos=1,
            will_properties={"message_expiry": expiry},
        ).drop()  # fmt: skip
    clock = dial(connect=f"{name}c")
    clock.subscribe(f"clock/{name}")
    will = {"will": (f"clock/{name}", b""), "will_properties": {"will_delay": 1}}
    dial(V5, connect=f"{name}d", session_expiry=1000, **will).drop()
    clock.message()
    away = dial(V5, connect=f"{name}o", **kept)
    message = away.takes()
    assert message.topic == f"{name}/long"
    assert message.props["message_expiry"] < 1000
    assert away.is_passed_over(clock)
