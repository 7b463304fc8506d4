"""SUBSCRIBE and UNSUBSCRIBE and their answers (sections 3.8 to 3.11)."""

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    V5,
    ack,
    packet,
    properties,
    subscribe,
    text,
    two,
    unsubscribe,
)

NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08


def is_refused(client, *codes):
    """One of the reasons and the end in MQTT 5.0, the end alone before it."""
    if client.version == V5:
        assert client.receive(DISCONNECT).code in codes
    assert client.is_closed()


# ----------------------------------------------------------------------------------- SUBSCRIBE


@both(
    "3.8.4-1 3.8.4-2 3.8.4-4 3.8.4-5 3.9.3-1 3.9.3-2",
    "3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1 3.9.3-2",
)
def test_several_filters_have_one_suback_with_a_code_for_each_in_order(dial, name, version):
    client = dial(version, connect=name)
    failed = 0x8F if version == V5 else 0x80
    wanted = [(f"{name}/0", 0), ("$share/g", 1), (f"{name}/1", 1), ("$queue/", 0), (f"{name}/2", 2)]
    client.send(subscribe(0x0102, *wanted, version=version))
    answer = client.receive(SUBACK)
    assert (answer.packet_id, answer.codes) == (0x0102, (0, failed, 1, failed, 2))
    publisher = dial(connect=f"{name}p")
    for qos in (2, 0, 1):
        publisher.publishes(f"{name}/{qos}", b"x", 2)
        assert client.takes().qos == qos
    assert client.is_passed_over(publisher)


@both("3.8.3-3", "3.8.3-2")
def test_a_subscribe_without_a_filter_ends_the_connection(dial, name, version):
    is_refused(dial(version, connect=name).send(subscribe(1, version=version)), 0x82)


@pytest.mark.parametrize("options", [3, 0x04, 0x08, 0x10, 0x40, 0x80, 0xFF])
@proves("3.1.1", "3.8.3-4 4.8.0-1")
def test_other_bits_than_the_qos_make_subscribe_malformed(dial, name, options):
    is_refused(dial(connect=name).send(subscribe(1, ("a", 0), (name, options))))


@pytest.mark.parametrize("options", [0x40, 0x80, 0xC0])
@proves("5.0", "3.8.3-5 4.13.1-1")
def test_reserved_options_make_subscribe_malformed(dial, name, options):
    request = subscribe(1, ("a", 0), (name, options), version=V5)
    is_refused(dial(V5, connect=name).send(request), 0x81)


@pytest.mark.parametrize("options", [0x03, 0x30], ids=["QoS 3", "retain handling 3"])
@proves("5.0", "4.13.1-1")
def test_options_without_a_meaning_end_the_connection(dial, name, options):
    request = subscribe(1, (name, options), version=V5)
    is_refused(dial(V5, connect=name).send(request), 0x82)


@pytest.mark.parametrize("cut", [1, 2, 3])
@both("4.8.0-1", "4.13.1-1")
def test_a_subscribe_that_ends_early_ends_the_connection(dial, name, version, cut):
    body = two(1) + (b"\x00" if version == V5 else b"") + text("abc") + b"\x00"
    is_refused(dial(version, connect=name).send(packet(0x82, body[:-cut])), 0x81)


@both("3.8.4-3", "3.8.4-3")
def test_the_same_filter_again_replaces_the_subscription(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(f"{name}/+", 2)
    client.subscribe(f"{name}/+", 1)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"x", 2)
    assert client.takes().qos == 1
    assert client.is_passed_over(publisher)
    client.unsubscribe(f"{name}/+")  # there was one
    publisher.publishes(f"{name}/a", b"x", 2)
    assert client.is_passed_over(publisher)


@both("3.8.4-3 3.3.1-8", "3.8.4-4 3.3.1-9")
def test_replacing_a_subscription_brings_retained_messages_again(dial, name, version):
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"kept", retain=True)
    client = dial(version, connect=name)
    for _ in range(2):
        client.send(subscribe(1, (f"{name}/+", 1), version=version))
        found = [client.receive(), client.receive()]  # in any order
        (message,) = [p for p in found if p.kind == 3]
        (answer,) = [p for p in found if p.kind == SUBACK]
        assert answer.codes == (1,)
        assert (message.body, message.retain) == (b"kept", True)
        client.send(ack(PUBACK, message.packet_id))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("granted", [(1, 1), (0, 1), (1, 0), (0, 2), (2, 1)], ids=str)
@both("3.8.4-3", "3.8.4-4")
def test_nothing_is_missed_while_a_subscription_is_replaced(
    dial, name, version, granted, published, clean
):
    kept = {"session_expiry": 1000} if version == V5 and not clean else {}
    client = dial(version, connect=name, clean=clean, **kept)
    client.subscribe(name, granted[0])
    publisher = dial(connect=f"{name}p")
    wanted = [b"%d" % number for number in range(100)]
    for number, body in enumerate(wanted, 1):
        publisher.publish(name, body, qos=published, packet_id=number)
        if number % 5 == 0:
            client.send(subscribe(number, (name, granted[number // 5 % 2]), version=version))
    publisher.publish(name, b"end", qos=published, packet_id=1000)
    got = []
    while b"end" not in got:
        found = client.receive()
        if found.kind == 3:
            got.append(found.body)
            if found.qos:
                client.send(ack(PUBACK, found.packet_id))
    assert got == [*wanted, b"end"]


# --------------------------------------------------------------------------------- UNSUBSCRIBE


@proves("3.1.1", "3.10.4-4 3.10.4-5")
def test_unsuback_comes_with_the_packet_id_also_when_nothing_is_removed(dial, name):
    client = dial(connect=name)
    client.subscribe(name)
    client.send(unsubscribe(0x0708, name))
    assert client.receive_raw() == b"\xb0\x02\x07\x08"
    client.send(unsubscribe(0x0709, name))
    assert client.receive_raw() == b"\xb0\x02\x07\x09"


@proves("5.0", "3.10.4-4 3.10.4-5 3.10.4-6 3.11.3-1 3.11.3-2")
def test_unsuback_has_a_code_for_each_filter_in_order(dial, name):
    client = dial(V5, connect=name)
    client.send(subscribe(1, (f"{name}/a", 0), (f"{name}/b", 0), version=V5))
    client.receive(SUBACK)
    client.send(unsubscribe(0x0708, f"{name}/b", f"{name}/none", f"{name}/a", version=V5))
    answer = client.receive(UNSUBACK)
    assert (answer.packet_id, answer.codes) == (0x0708, (0x00, 0x11, 0x00))
    client.send(unsubscribe(0x0709, f"{name}/a", version=V5))
    answer = client.receive(UNSUBACK)
    assert (answer.packet_id, answer.codes) == (0x0709, (0x11,))


@both("3.10.4-1 3.10.4-2", "3.10.4-1 3.10.4-2")
def test_only_the_filter_that_is_equal_is_removed(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(f"{name}/+/x")
    for other in (f"{name}/a/x", f"{name}/#", f"{name}/+/+", f"{name}/+/X", f"/{name}/+/x", "#"):
        client.unsubscribe(other)
    publisher = dial(connect=f"{name}p")
    publisher.publish(f"{name}/a/x", b"one")
    assert client.message().body == b"one"
    client.unsubscribe(f"{name}/+/x")
    publisher.publish(f"{name}/a/x", b"two")
    assert client.is_passed_over(publisher)


@both("3.10.4-6", "3.10.4-6")
def test_several_filters_are_removed_with_one_unsuback(dial, name, version):
    client = dial(version, connect=name)
    names = [f"{name}/{letter}" for letter in "abc"]
    client.send(subscribe(1, *((topic, 0) for topic in names), version=version))
    client.receive(SUBACK)
    client.send(unsubscribe(2, names[0], names[2], version=version))
    assert client.receive(UNSUBACK).packet_id == 2
    publisher = dial(connect=f"{name}p")
    for topic in names:
        publisher.publish(topic, b"x")
    assert client.message().topic == names[1]
    assert client.is_passed_over(publisher)


@both("3.10.3-2", "3.10.3-2")
def test_an_unsubscribe_without_a_filter_ends_the_connection(dial, name, version):
    is_refused(dial(version, connect=name).send(unsubscribe(1, version=version)), 0x82)


@both("3.10.4-3", "3.10.4-3")
def test_what_was_sent_before_unsubscribe_is_completed(dial, name, version):
    client = dial(version, connect=name)
    client.subscribe(name, 2)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(name, b"1", 1)
    publisher.publishes(name, b"2", 2)
    one, two_ = client.message(), client.message()
    client.unsubscribe(name)
    client.send(ack(PUBACK, one.packet_id), ack(PUBREC, two_.packet_id))
    assert client.receive(PUBREL).packet_id == two_.packet_id
    client.send(ack(PUBCOMP, two_.packet_id))
    assert client.is_passed_over(publisher)


# --------------------------------------------------------------------- subscription options of 5.0


@proves("5.0", "3.8.3-3")
def test_no_local_keeps_a_clients_own_messages_away(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/mine", 1 | NO_LOCAL)
    client.subscribe(f"{name}/all", 1)
    other = dial(V5, connect=f"{name}p")
    client.publish(f"{name}/mine", b"own", qos=1, packet_id=100)
    assert client.receive(PUBACK).packet_id == 100
    other.publishes(f"{name}/mine", b"other")
    found = client.takes()
    assert (found.topic, found.body) == (f"{name}/mine", b"other")
    client.publish(f"{name}/all", b"own", qos=0)
    assert client.message().topic == f"{name}/all"


@proves("5.0", "3.8.3-3")
def test_no_local_is_about_the_client_id_and_not_the_connection(dial, name):
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    client.subscribe(name, 1 | NO_LOCAL)
    client.drop()
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    client.publish(name, b"own", qos=1, packet_id=100)
    assert client.receive(PUBACK).packet_id == 100
    assert client.is_passed_over(dial(connect=f"{name}p"))


@proves("5.0", "3.8.3-4")
def test_no_local_on_a_shared_subscription_is_a_protocol_error(dial, name):
    client = dial(V5, connect=name)
    client.send(subscribe(1, (f"$share/g/{name}", NO_LOCAL), version=V5))
    is_refused(client, 0x82)


@proves("5.0", "3.3.1-12")
@pytest.mark.parametrize("retain", [False, True])
def test_without_retain_as_published_retain_is_0(dial, name, retain):
    client = dial(V5, connect=name)
    client.subscribe(name, 0)
    dial(V5, connect=f"{name}p").publishes(name, b"x", retain=retain)
    assert client.message().retain is False


@proves("5.0", "3.3.1-13")
@pytest.mark.parametrize("retain", [False, True])
def test_with_retain_as_published_retain_is_what_the_publisher_sent(dial, name, retain):
    client = dial(V5, connect=name)
    client.subscribe(name, RETAIN_AS_PUBLISHED)
    dial(V5, connect=f"{name}p").publishes(name, b"x", retain=retain)
    assert client.message().retain is retain


# ------------------------------------------------------------------------ subscription identifiers


@pytest.mark.parametrize("identifier", [1, 127, 128, 16_384, 268_435_455])
@proves("5.0", "3.3.4-3")
def test_a_message_has_the_identifier_of_its_subscription(dial, name, identifier):
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/a", 0, subscription_id=identifier)
    client.subscribe(f"{name}/b", 0)
    publisher = dial(connect=f"{name}p")
    publisher.publish(f"{name}/a", b"x")
    publisher.publish(f"{name}/b", b"x")
    assert client.message().props == {"subscription_id": [identifier]}
    assert client.message().props == {}


@proves("5.0", "3.3.4-3 3.3.4-4 3.3.4-2")
def test_the_one_copy_has_the_identifiers_of_all_subscriptions_that_match(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/#", 1, subscription_id=11)
    client.subscribe(f"{name}/+", 2, subscription_id=22)
    client.subscribe(f"{name}/a", 0)
    client.subscribe(f"{name}/b", 0, subscription_id=33)
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"x", 2)
    copy = client.takes()
    assert copy.qos == 2
    assert sorted(copy.props["subscription_id"]) == [11, 22]
    assert client.is_passed_over(publisher)


@proves("5.0", "3.8.4-3 3.3.4-3")
def test_the_last_subscribe_says_which_identifier_counts(dial, name):
    client = dial(V5, connect=name)
    publisher = dial(connect=f"{name}p")
    for identifier in (5, 6, None):
        props = {} if identifier is None else {"subscription_id": identifier}
        client.subscribe(name, 0, **props)
        publisher.publish(name, b"x")
        wanted = {} if identifier is None else {"subscription_id": [identifier]}
        assert client.message().props == wanted


@proves("5.0", "3.3.4-3")
def test_a_kept_subscription_keeps_its_identifier(dial, name):
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    client.subscribe(name, 1, subscription_id=7)
    client.drop()
    dial(connect=f"{name}p").publishes(name, b"x")
    client = dial(V5, connect=name, clean=False, session_expiry=1000)
    assert client.takes().props == {"subscription_id": [7]}


@pytest.mark.parametrize(
    "block",
    [properties(subscription_id=0), properties(subscription_id=[1, 2])],
    ids=["0", "two"],
)
def test_a_subscription_identifier_of_0_or_two_of_them_end_the_connection(dial, name, block):
    client = dial(V5, connect=name)
    client.send(packet(0x82, two(1) + block + text(name) + b"\x00"))
    is_refused(client, 0x82)


@proves("5.0", "3.3.4-6")
def test_a_clients_publish_has_no_subscription_identifier(dial, name):
    client = dial(V5, connect=name)
    client.publish(name, b"x", subscription_id=1)
    is_refused(client, 0x82)


@proves("5.0", "3.8.4-3 3.8.3-3 3.3.1-13")
def test_subscribing_again_replaces_all_options(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(name, NO_LOCAL)
    client.publish(name, b"unheard")
    client.subscribe(name, RETAIN_AS_PUBLISHED | 0x20)
    client.publish(name, b"heard", retain=True)
    message = client.message()
    assert (message.body, message.retain) == (b"heard", True)
    client.subscribe(name, NO_LOCAL | 0x20)
    client.publish(name, b"unheard")
    assert client.is_passed_over(dial(connect=f"{name}p"))


@proves("5.0", "3.3.4-3")
def test_retained_messages_have_the_identifier_of_the_subscription_that_brings_them(dial, name):
    dial(connect=f"{name}p").publishes(f"{name}/a", b"kept", retain=True)
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/#", 0, subscription_id=3)
    message = client.message()
    assert (message.retain, message.props) == (True, {"subscription_id": [3]})


@proves("5.0", "3.3.4-3")
def test_shared_subscriptions_have_identifiers_too(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"$share/g/{name}", 1, subscription_id=9)
    dial(connect=f"{name}p").publishes(name, b"x")
    assert client.takes().props == {"subscription_id": [9]}


@proves("5.0", "3.3.4-2 3.3.4-3")
def test_overlapping_subscriptions_of_a_kept_session_are_one_copy_too(dial, name):
    kept = {"clean": False, "session_expiry": 1000}
    client = dial(V5, connect=name, **kept)
    client.subscribe(f"{name}/#", 1, subscription_id=11)
    client.subscribe(f"{name}/a", 2, subscription_id=22)
    client.drop()
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"x", 2)
    client = dial(V5, connect=name, **kept)
    copy = client.takes()
    assert (copy.qos, sorted(copy.props["subscription_id"])) == (2, [11, 22])
    assert client.is_passed_over(publisher)


@proves("5.0", "3.3.4-3 3.3.4-5 3.8.3-3")
def test_of_two_copies_each_has_the_identifier_of_its_subscription(dial, name):
    client = dial(V5, connect=name)
    client.subscribe(f"{name}/#", 1 | NO_LOCAL, subscription_id=11)
    client.subscribe(f"{name}/a", 1, subscription_id=22)
    client.publish(f"{name}/a", b"own")
    own = client.takes()
    assert (own.body, own.props) == (b"own", {"subscription_id": [22]})
    publisher = dial(connect=f"{name}p")
    publisher.publishes(f"{name}/a", b"other")
    copies = [client.takes() for _ in range(2)]
    assert [m.body for m in copies] == [b"other"] * 2
    assert sorted(m.props["subscription_id"] for m in copies) == [[11], [22]]
    assert client.is_passed_over(publisher)


@proves("5.0", "4.4.0-1 3.8.4-3")
@pytest.mark.parametrize("options", [(1, 1 | NO_LOCAL), (1 | NO_LOCAL, 1), (2, 1), (1, 2)], ids=str)
def test_messages_of_a_replaced_subscription_keep_their_packet_ids(dial, name, options):
    kept = {"clean": False, "session_expiry": 1000}
    client = dial(V5, connect=name, **kept)
    for option in options:
        client.subscribe(name, option)
    publisher = dial(connect=f"{name}p")
    for qos in (1, 2):
        publisher.publishes(name, b"%d" % qos, qos)
    sent = [client.message() for _ in range(2)]
    client.drop()
    client = dial(V5, connect=name, **kept)
    again = [client.message() for _ in range(2)]
    assert [(m.body, m.packet_id, m.dup) for m in again] == [
        (m.body, m.packet_id, True) for m in sent
    ]
