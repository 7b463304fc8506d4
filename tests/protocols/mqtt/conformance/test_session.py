"""Sessions: clean ones, kept ones, and what belongs to them (sections 3.1.2, 3.2.2 and 4.1)."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V311, ack, disconnect


def kept(version, expiry=1000):
    """Options of a session that outlives its connection."""
    return {"clean": False} | ({"session_expiry": expiry} if version == V5 else {})


@both("3.1.2-4 3.2.2-2 3.2.2-3 4.1.0-1", "3.1.2-5 3.1.2-6 3.2.2-3 3.1.2-23 3.1.4-4")
def test_a_kept_session_goes_on(dial, name, version):
    client = dial(version)
    assert client.connect(name, **kept(version)).session_present == 0
    client.subscribe(name, 1)
    client.drop()
    client = dial(version)
    assert client.connect(name, **kept(version)).session_present == 1
    dial(connect=f"{name}p").publish(name, b"x")
    assert client.message().body == b"x"


@both("3.1.2-5 4.5.0-1 3.2.0-1", "3.1.2-5 4.5.0-1 3.2.0-1")
def test_a_kept_session_collects_qos_1_and_2_while_nobody_is_connected(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(f"{name}/+", 2)
    client.leave() if version == V311 else client.drop()
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/1", b"1", 1)
    publisher.publishes(f"{name}/2", b"2", 2)
    client = dial(version)
    assert client.connect(name, **kept(version)).session_present == 1  # CONNACK is the first
    assert [(m.topic, m.body, m.qos) for m in (client.takes(), client.takes())] == [
        (f"{name}/1", b"1", 1),
        (f"{name}/2", b"2", 2),
    ]
    assert client.is_passed_over(publisher)


@both("3.1.2-6 3.1.4-3 3.2.2-1", "3.1.2-4 3.2.2-2 3.1.4-4")
def test_a_clean_start_drops_what_was_there(dial, name, version):
    client = dial(version, connect=name, **kept(version))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"sent", 2)
    client.message()
    client.drop()
    publisher.publishes(name, b"pending", 1)
    client = dial(version)
    assert client.connect(name, clean=True).session_present == 0
    publisher.publishes(name, b"new", 1)
    assert client.is_passed_over(publisher)


@both("3.1.2-6 3.1.4-3", "3.1.2-4")
def test_a_clean_start_forgets_packet_ids_too(dial, name, version):
    subscriber = dial(connect=f"{name}s")
    subscriber.subscribe(name)
    client = dial(version, connect=name, **kept(version))
    client.publish(name, b"one", qos=2, packet_id=5)
    assert client.receive(PUBREC).packet_id == 5
    client.drop()
    client = dial(version, connect=name)
    client.publish(name, b"two", qos=2, packet_id=5)
    assert client.receive(PUBREC).packet_id == 5
    assert [subscriber.message().body for _ in range(2)] == [b"one", b"two"]


@both("3.1.2-6", "4.1.0-2 3.1.2-23")
def test_a_session_that_is_not_kept_ends_with_its_connection(dial, name, version):
    client = dial(version, connect=name, clean=True)
    client.subscribe(name, 1)
    client.drop()
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"x")
    client = dial(version)
    assert client.connect(name, **kept(version)).session_present == 0
    assert client.is_passed_over(publisher)


@proves("3.1.1", "4.1.0-2")
@proves("5.0", "4.1.0-1")
def test_a_session_lasts_as_long_as_its_connection(dial, name):
    older = dial(V311, connect=f"{name}3", clean=True)
    newer = dial(V5, connect=f"{name}5", clean=True, session_expiry=1)
    for client in (older, newer):
        client.subscribe(f"{name}/#", 1)
    # Meanwhile one expires that had as long: the time counts from the end of the connection.
    short = dial(
        V5, connect=f"{name}x", will=(f"{name}/will", b"ended"), session_expiry=1,
        will_properties={"will_delay": 100},
    )  # fmt: skip
    short.drop()
    assert older.message().body == b"ended"
    assert newer.message().body == b"ended"


@both("4.1.0-1 3.1.2-4", "3.1.2-23 3.1.2-5")
def test_a_kept_session_survives_the_gateway(dial, name, version, start_gateway):
    gateway = start_gateway()
    client = dial(version, connect=name, gateway=gateway, **kept(version))
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p", gateway=gateway)
    publisher.publishes(name, b"1", 1)
    publisher.publishes(name, b"2", 2)
    publisher.publishes(name, b"3", 2)
    sent = [client.message() for _ in range(3)]
    client.send(ack(PUBREC, sent[2].packet_id))
    assert client.receive(PUBREL).packet_id == sent[2].packet_id
    client.publish(f"{name}/x", b"", qos=2, packet_id=40)
    assert client.receive(PUBREC).packet_id == 40
    client.drop()
    publisher.drop()
    gateway.restart()

    client = dial(version, gateway=gateway)
    assert client.connect(name, **kept(version)).session_present == 1
    again = [client.receive() for _ in range(3)]
    published = [p for p in again if p.kind == 3]
    assert [p.body for p in published] == [b"1", b"2"]
    assert published[1].packet_id == sent[1].packet_id
    assert [p.packet_id for p in again if p.kind == PUBREL] == [sent[2].packet_id]
    client.send(ack(PUBACK, published[0].packet_id), ack(PUBREC, published[1].packet_id))
    client.send(ack(PUBCOMP, sent[2].packet_id))
    assert client.receive(PUBREL).packet_id == sent[1].packet_id
    client.send(ack(PUBCOMP, sent[1].packet_id))
    watcher = dial(connect=f"{name}w", gateway=gateway)
    watcher.subscribe(f"{name}/x")
    client.publish(f"{name}/x", b"", qos=2, packet_id=40, dup=True)
    assert client.receive(PUBREC).packet_id == 40
    assert watcher.is_passed_over(dial(connect=f"{name}q", gateway=gateway))


@proves("3.1.1", "3.1.2-7")
def test_retained_messages_stay_when_the_session_ends(dial, name):
    client = dial(connect=name)
    client.publishes(name, b"kept", retain=True)
    client.leave()
    dial(connect=name, clean=True).leave()
    client = dial(connect=name)
    client.subscribe(name)
    assert client.message().body == b"kept"


# ------------------------------------------------------------------------ the expiry interval of 5.0


def ends(dial, name, expiry):
    """Drop a session that expires; return when it has: its will says so."""
    observer = dial(connect=f"{name}o")
    observer.subscribe(f"{name}/will")
    client = dial(
        V5, connect=name, session_expiry=expiry, will=(f"{name}/will", b"ended"),
        will_properties={"will_delay": 1000},
    )  # fmt: skip
    client.subscribe(name, 1)
    client.drop()
    assert observer.message().body == b"ended"


@proves("5.0", "4.1.0-2 3.1.2-8")
def test_a_session_ends_when_its_expiry_interval_has_passed(dial, name):
    ends(dial, name, 1)
    dial(connect=f"{name}p").publishes(name, b"x")
    client = dial(V5)
    assert client.connect(name, clean=False).session_present == 0
    assert client.is_passed_over(dial(connect=f"{name}q"))


@pytest.mark.parametrize("expiry", [{}, {"session_expiry": 0}], ids=["absent", "0"])
@proves("5.0", "4.1.0-2")
def test_without_an_expiry_interval_the_session_ends_at_once(dial, name, expiry):
    client = dial(V5, connect=name, clean=False, **expiry)
    client.subscribe(name, 1)
    client.drop()
    assert dial(V5).connect(name, clean=False).session_present == 0


@proves("5.0", "3.1.2-23")
def test_disconnect_can_change_the_expiry_interval(dial, name):
    client = dial(V5, connect=name, session_expiry=1000)
    client.send(disconnect(0, session_expiry=0))
    assert client.is_closed()
    assert dial(V5).connect(name, clean=False, session_expiry=1).session_present == 0
    client = dial(V5, connect=name, clean=False, session_expiry=1)
    client.send(disconnect(0, session_expiry=0xFFFF_FFFF))
    assert client.is_closed()
    assert dial(V5).connect(name, clean=False).session_present == 1


@proves("5.0", "4.13.1-1")
def test_disconnect_cannot_make_a_session_that_was_not_kept_a_kept_one(dial, name):
    client = dial(V5, connect=name)
    client.send(disconnect(0, session_expiry=10))
    assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@proves("5.0", "3.1.2-5")
def test_a_session_goes_over_from_one_version_to_the_other(dial, name):
    client = dial(V311, connect=name, clean=False)
    client.subscribe(name, 2)
    client.drop()
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"one", 2)
    client = dial(V5)
    assert client.connect(name, clean=False, session_expiry=1000).session_present == 1
    assert client.takes().body == b"one"
    client.drop()
    publisher.publishes(name, b"two", 1)
    client = dial(V311)
    assert client.connect(name, clean=False).session_present == 1
    assert client.takes().body == b"two"


@proves("5.0", "3.2.2-3")
def test_a_session_is_present_also_when_it_holds_nothing(dial, name):
    dial(V5, connect=name, clean=False, session_expiry=1000).drop()
    assert dial(V5).connect(name, clean=False, session_expiry=1000).session_present == 1


@proves("5.0", "4.1.0-2")
def test_the_last_connect_says_how_long_the_session_is_kept(dial, name):
    dial(V5, connect=name, clean=False, session_expiry=1000).drop()
    client = dial(V5)
    assert client.connect(name, clean=False).session_present == 1
    client.drop()  # this connection asked for none
    assert dial(V5).connect(name, clean=False, session_expiry=1000).session_present == 0


@proves("5.0", "3.1.2-23 4.1.0-2")
def test_clean_start_and_expiry_are_two_things(dial, name):
    client = dial(V5, connect=name, clean=True, session_expiry=1000)
    client.subscribe(name, 1)
    client.drop()
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"x")
    client = dial(V5)
    assert client.connect(name, clean=False, session_expiry=1000).session_present == 1
    assert client.takes().body == b"x"


@both("4.1.0-1", "4.1.0-1 3.1.2-5")
def test_a_take_over_carries_on_what_was_open(dial, name, version):
    older = dial(version, connect=name, **kept(version))
    older.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"1", 1)
    publisher.publishes(name, b"2", 2)
    sent = [older.message() for _ in range(2)]
    newer = dial(version)
    assert newer.connect(name, **kept(version)).session_present == 1
    again = [newer.message() for _ in range(2)]
    assert [(m.body, m.packet_id, m.dup) for m in again] == [
        (m.body, m.packet_id, True) for m in sent
    ]


@proves("5.0", "4.1.0-2")
def test_a_session_expires_also_while_the_gateway_is_restarted(dial, name, start_gateway):
    gateway = start_gateway()
    client = dial(V5, connect=name, gateway=gateway, session_expiry=1)
    client.subscribe(name, 1)
    client.drop()
    gateway.restart()
    observer = dial(V5, connect=f"{name}o", gateway=gateway)
    observer.subscribe(f"{name}/clock")
    clock = {"will": (f"{name}/clock", b""), "will_properties": {"will_delay": 1}}
    dial(V5, connect=f"{name}c", gateway=gateway, session_expiry=1000, **clock).drop()
    observer.message()  # a second later, and it began later
    assert dial(V5, gateway=gateway).connect(name, clean=False).session_present == 0


@proves("5.0", "3.1.2-23 3.1.2-5 3.3.4-3 3.8.3-3 3.3.1-13")
def test_the_options_of_subscriptions_survive_the_gateway(dial, name, start_gateway):
    gateway = start_gateway()
    options = {"gateway": gateway, "clean": False, "session_expiry": 1000}
    client = dial(V5, connect=name, **options)
    client.subscribe(f"{name}/local", 0x04 | 1, subscription_id=1)
    client.subscribe(f"{name}/retain", 0x08 | 2, subscription_id=2)
    client.drop()
    gateway.restart()
    client = dial(V5, connect=name, **options)
    client.publish(f"{name}/local", b"own")
    publisher = dial(connect=f"{name}p", gateway=gateway)
    publisher.publishes(f"{name}/local", b"other", 2)
    publisher.publishes(f"{name}/retain", b"kept", 2, retain=True)
    assert [(m.body, m.qos, m.retain, m.props) for m in (client.takes(), client.takes())] == [
        (b"other", 1, False, {"subscription_id": [1]}),
        (b"kept", 2, True, {"subscription_id": [2]}),
    ]
