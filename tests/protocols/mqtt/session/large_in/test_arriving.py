"""Large PUBLISH packets of one session: what is asked of the broker and the disk, in which order.

A session whose store streams has to do the same as one whose store does not, with the same bytes
however they are cut; the last test draws them at random and compares.
"""

import pytest
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from large_fakes import settled
from mqtt_large_in import ANSWERS, BIG, SIZE_MIN, Case, by_level, wired

from tidegate.spi import InflightDirection, InflightRecord, InflightState
from tidegate_protocols._large_in import BODIES_MAX, HIGH_BYTES, LOW_BYTES
from tidegate_protocols.mqtt import (
    NO_PROPERTIES,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    SessionState,
)

# --------------------------------------------------------------------------------------- arriving


@by_level
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("step", [1, 7, 50, 10_000])
async def test_a_large_publish_is_streamed_however_it_is_cut(case, level, qos, step):
    it = case(level)
    packet_id = 7 if qos else 0
    packets = [Publish("a/b", BIG, qos, packet_id), Publish("a", b"small", 0), Pingreq()]
    await it.feed(wired(level, *packets), step)
    assert it.published() == [("topic://a.b", BIG, qos), ("topic://a", b"small", 0)]
    (writer,) = it.bodies.writers
    assert writer.data == BIG
    answers = it.answers()
    assert sorted(answers, key=repr) == sorted(
        [Pingresp(), *([ANSWERS[qos](7)] if qos else [])], key=repr
    )
    assert it.link.is_reading


@by_level
@pytest.mark.parametrize(("size", "is_large"), [(SIZE_MIN - 1, False), (SIZE_MIN, True)])
@pytest.mark.parametrize("step", [1, 10_000])
async def test_the_size_of_the_payload_alone_decides(case, level, size, is_large, step):
    it = case(level)
    await it.feed(wired(level, Publish("t" * 120, b"x" * size, 1, 7)), step)
    assert it.published() == [("topic://" + "t" * 120, b"x" * size, 1)]
    assert len(it.bodies.writers) == is_large


async def test_properties_stay_with_a_large_message(case):
    it = case()
    properties = Properties(
        message_expiry_interval=10,
        content_type="text/plain",
        correlation_data=b"\0c",
        payload_format_indicator=1,
        user_properties=(("k", "1"), ("_AMQ_DUPL_ID", "x")),
    )
    await it.sends(Publish("a", BIG, 1, 7, properties=properties))
    ((message, _),) = it.connection.take("publish")
    assert message.headers == properties.user_properties
    assert message.expires_at == message.received_at + 10_000_000
    assert (message.content_type, message.payload_format) == ("text/plain", 1)
    assert (message.body, it.body(message)) == (b"", BIG)
    assert it.connection.duplicate_ids == ["x"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_nothing_is_confirmed_before_the_body_is_on_disk_and_the_message_durable(case, qos):
    it = case()
    it.bodies.finish_door.clear()
    await it.sends(Publish("a", BIG, qos, 7))
    assert (it.published(), it.answers()) == ([], [])
    it.bodies.finish_door.set()
    await settled()
    assert len(it.published()) == 1
    assert it.client.gets() == []
    assert it.answers() == [ANSWERS[qos](7)]


async def test_a_client_hears_that_nobody_subscribes_to_a_large_message(case):
    it = case()
    it.connection.has_subscribers = False
    await it.sends(Publish("a", BIG, 1, 7))
    assert it.answers() == [Puback(7, ReasonCode.NO_MATCHING_SUBSCRIBERS)]


async def test_an_alias_stands_for_the_topic_of_a_large_message_and_can_be_defined_by_one(case):
    it = case()
    alias = Properties(topic_alias=3)
    await it.sends(
        Publish("a", BIG, properties=alias),
        Publish("", BIG, properties=alias),
        Publish("", b"x", properties=alias),
    )
    assert [destination for destination, _, _ in it.published()] == ["topic://a"] * 3


# ------------------------------------------------------------------------------------ order, pauses


@by_level
async def test_other_packets_wait_until_everything_before_them_is_published(case, level):
    it = case(level)
    it.bodies.finish_door.clear()
    await it.sends(Publish("1", BIG, 1, 1), Publish("2", b"x", 1, 2), Pingreq())
    assert (it.published(), it.answers(), it.link.is_reading) == ([], [], False)
    it.bodies.finish_door.set()
    await settled()
    assert [destination for destination, _, _ in it.published()] == ["topic://1", "topic://2"]
    assert it.client.gets() == [Pingresp()]
    assert it.answers() == [Puback(1), Puback(2)]
    assert it.link.is_reading


@by_level
async def test_large_messages_are_synced_side_by_side_and_published_in_order(case, level):
    it = case(level)
    it.bodies.finish_door.clear()
    numbers = range(1, BODIES_MAX + 3)
    await it.sends(*(Publish(str(number), BIG, 1, number) for number in numbers))
    assert len(it.bodies.writers) == BODIES_MAX
    assert not it.link.is_reading  # the next one waits for a place
    it.bodies.finish_door.set()
    await settled()
    assert [name for name, _, _ in it.published()] == [f"topic://{n}" for n in numbers]
    assert it.answers() == [Puback(number) for number in numbers]
    assert it.link.is_reading


async def test_a_slow_disk_pauses_the_socket_until_it_has_caught_up(case):
    it = case()
    it.bodies.door.clear()
    wire = wired(5, Publish("a", b"x" * (4 * HIGH_BYTES)))
    it.client.session.data_received(wire[:100])
    await settled()  # that much is being written and does not wait
    it.client.session.data_received(wire[100 : 100 + HIGH_BYTES])
    assert it.link.is_reading
    it.client.session.data_received(wire[100 + HIGH_BYTES : 101 + HIGH_BYTES])
    assert not it.link.is_reading
    it.bodies.door.set()
    await settled()
    assert it.link.is_reading
    assert LOW_BYTES < HIGH_BYTES
    it.client.hangs_up()
    await settled()


async def test_a_slow_upload_is_a_sign_of_life(case, make_client):
    it = Case(make_client).connects(keep_alive=10)
    wire = wired(5, Publish("a", b"x" * 1000))
    for at in range(0, len(wire), 100):
        it.client.runtime.advance(14)
        it.client.session.data_received(wire[at : at + 100])
    await settled()
    assert len(it.published()) == 1
    it.client.runtime.advance(14)
    assert it.state() is SessionState.CONNECTED
    it.client.runtime.advance(2)
    assert it.state() is SessionState.CLOSED


# ------------------------------------------------------------------------------------------- QoS 2


@by_level
async def test_a_repeated_qos_2_message_is_answered_again_and_its_body_is_not_kept(case, level):
    it = case(level)
    await it.sends(Publish("a", BIG, 2, 7))
    assert it.answers() == [Pubrec(7)]
    await it.feed(wired(level, Publish("a", BIG, 2, 7, dup=True), Pingreq()), 9)
    assert it.client.gets() == [Pingresp()]
    assert it.answers() == [Pubrec(7)]
    assert (len(it.published()), len(it.bodies.writers)) == (1, 1)
    await it.sends(Pubrel(7))
    assert it.answers() == [Pubcomp(7)]
    await it.sends(Publish("a", BIG, 2, 7))
    assert len(it.published()) == 1, "the id means another message now"


@by_level
async def test_a_repetition_that_comes_while_the_first_is_synced_is_not_published(case, level):
    it = case(level)
    it.bodies.finish_door.clear()
    await it.sends(Publish("a", BIG, 2, 7), Publish("a", BIG, 2, 7, dup=True))
    it.bodies.finish_door.set()
    await settled()
    assert len(it.published()) == 1
    assert it.answers() == [Pubrec(7), Pubrec(7)]


@by_level
async def test_a_qos_2_message_that_an_earlier_connection_received_is_known(make_client, level):
    it = Case(make_client, level)
    it.broker.session_present = True
    it.broker.inflight = [InflightRecord("dev", InflightDirection.IN, 7, InflightState.RECEIVED)]
    it.connects(clean_session=False)
    await it.sends(Publish("a", BIG, 2, 7, dup=True))
    assert (it.published(), it.answers(), it.bodies.writers) == ([], [Pubrec(7)], [])


@by_level
async def test_the_packet_id_of_a_kept_session_is_recorded_with_the_message(make_client, level):
    it = Case(make_client, level, session_expiry=1000)
    kept = Properties(session_expiry_interval=100) if level == 5 else NO_PROPERTIES
    it.connects(clean_session=False, properties=kept)
    await it.sends(Publish("a", BIG, 2, 7))
    ((_, record),) = it.connection.take("publish")
    assert record == InflightRecord("dev", InflightDirection.IN, 7, InflightState.RECEIVED)


# --------------------------------------------------------------------- the same as without streaming


def packets_of(level):
    ids = st.integers(1, 3)
    body = st.sampled_from([b"", b"x", b"y" * (SIZE_MIN - 1), b"z" * SIZE_MIN, BIG, b"\xff" * 200])
    properties = st.just(NO_PROPERTIES)
    if level == 5:
        properties = st.builds(
            Properties,
            payload_format_indicator=st.sampled_from([None, 0, 1]),
            topic_alias=st.sampled_from([None, None, 1, 2, 17]),
            user_properties=st.sampled_from([(), (("k", "v" * 150),)]),
        )

    def publish(topic, body, qos, packet_id, retain, properties):
        if not topic and properties.topic_alias is None:
            topic = "a"
        return Publish(topic, body, qos, packet_id if qos else 0, retain, properties=properties)

    topics = st.sampled_from(["a", "a/b", "t" * 130, "$queue/a", "$SYS/x", *([""] * (level == 5))])
    one = st.one_of(
        st.builds(publish, topics, body, st.integers(0, 2), ids, st.booleans(), properties),
        st.builds(Pubrel, ids),
        st.just(Pingreq()),
    )
    return st.lists(one, max_size=7)


async def outcome(it, wire, steps):
    """What a session makes of *wire*, cut into pieces as *steps* says."""
    position = 0
    for size in [*steps, len(wire)]:
        for _ in range(100):
            if it.link.is_reading:
                break
            await settled()
        if it.link.is_closing:
            break
        it.client.session.data_received(wire[position : position + size])
        position += size
    await settled()
    messages = [
        (m.destination, it.body(m), m.qos, m.retain, m.headers, m.payload_format)
        for m, _ in it.connection.take("publish")
    ]
    it.connection.calls = []
    answers = it.client.gets()
    if not it.link.is_closing:
        it.client.durable()
        answers += it.client.gets()
    return messages, [a for a in answers if a != Pingresp()], it.state()


@by_level
@settings(
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
async def test_any_bytes_cut_anyhow_mean_the_same_as_in_memory(make_client, level, data):
    wire = wired(level, *data.draw(packets_of(level)))
    if wire and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(wire) - 1))
        wire = wire[:at] + bytes([data.draw(st.integers(0, 255))]) + wire[at + 1 :]
    steps = data.draw(st.lists(st.integers(1, 400), max_size=12))

    plain = Case(make_client, level)
    plain.broker.large_bodies = None
    plain.connects()
    wanted = await outcome(plain, wire, [])
    # Of a packet whose end never comes the header alone can be wrong, which only streaming sees.
    assume(not plain.client.session._codec.incomplete_bytes)
    streamed = Case(make_client, level).connects()
    assert await outcome(streamed, wire, steps) == wanted
    streamed.client.hangs_up()
    await settled()
    unfinished = [w for w in streamed.bodies.writers if len(w.data) != w.size]
    assert all(writer.is_abandoned for writer in unfinished)
