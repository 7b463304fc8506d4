"""Large PUBLISH packets of one session: what is asked of the broker and the disk, in which order.

A session whose store streams has to do the same as one whose store does not, with the same bytes
however they are cut; the last test draws them at random and compares.
"""

import asyncio

import mqtt_raw
import pytest
from examples import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from large_fakes import FakeBodies, settled

from tidegate.spi import (
    AccessError,
    ConnectionEndedError,
    FlowControlError,
    InflightDirection,
    InflightRecord,
    InflightState,
    RequestError,
    StoreFullError,
    StoreIOError,
)
from tidegate_protocols._large_in import BODIES_MAX, HIGH_BYTES, LOW_BYTES
from tidegate_protocols.mqtt import (
    NO_PROPERTIES,
    Connect,
    Disconnect,
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
    encode,
)

SIZE_MIN = 100
BIG = b"0123456789" * 30
LEVELS = (3, 4, 5)
ANSWERS = {1: Puback, 2: Pubrec}
TEXT = Properties(payload_format_indicator=1)

by_level = pytest.mark.parametrize("level", LEVELS)


def wired(level, *packets):
    return b"".join(encode(packet, level) for packet in packets)


class Case:
    """A connected client of a gateway whose store streams; its tasks run on the loop."""

    def __init__(self, make_client, level=5, **options):
        self.bodies = FakeBodies()
        self.bodies.size_min = SIZE_MIN
        self.client = make_client(**options)
        self.broker = self.client.broker
        self.connection = self.client.connection
        self.link = self.client.link
        self.broker.large_bodies = self.bodies
        self.level = level

    def connects(self, **values):
        self.client.connects(level=self.level, **values)
        self.connection.calls.clear()
        self.tasks = []
        self.client.runtime.spawn = self.spawn
        return self

    def spawn(self, coroutine):
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
        return self.tasks[-1]

    async def sends(self, *packets):
        self.client.sends(*packets)
        await settled()

    async def feed(self, data, step):
        for at in range(0, len(data), step):
            for _ in range(100):
                if self.link.is_reading:
                    break
                await settled()
            self.client.session.data_received(data[at : at + step])
        await settled()

    def published(self):
        """Destination, body and QoS of each message."""
        return [
            (message.destination, self.body(message), message.qos)
            for message, _ in self.connection.take("publish")
        ]

    def body(self, message):
        return message.body if message.large is None else self.bodies.contents[message.large.id]

    def answers(self):
        self.client.durable()
        return self.client.gets()

    def state(self):
        return self.client.session.state


@pytest.fixture
def case(make_client):
    """``case(level, **options)``: a Case that is connected."""
    return lambda level=5, **options: Case(make_client, level, **options).connects()


@pytest.fixture(autouse=True)
async def every_task_ends():
    yield
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


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


# ---------------------------------------------------------------------------------------- refusals


REFUSALS = [
    (AccessError("no"), 0x87),
    (RequestError("bad name"), 0x90),
    (FlowControlError("too much"), 0x97),
    (StoreFullError("no room"), 0x97),
    (StoreIOError("read-only"), 0x83),
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("when", ["check_publish", "publish"])
@pytest.mark.parametrize(("error", "reason"), REFUSALS)
async def test_a_refused_large_message_is_answered_and_its_body_passed_over(
    case, qos, when, error, reason
):
    it = case()
    it.connection.errors[when] = error
    await it.feed(wired(5, Publish("a", BIG, qos, 7 if qos else 0), Pingreq()), 11)
    assert it.client.gets() == [Pingresp()]
    wanted = Properties(reason_string=error.for_client)
    assert it.answers() == ([ANSWERS[qos](7, reason, wanted)] if qos else [])
    assert len(it.bodies.writers) == (when == "publish")
    it.connection.errors.clear()
    await it.sends(Publish("a", BIG, qos, 7 if qos else 0))
    assert len(it.published()) == 1, "the connection goes on and the id is free"


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("when", ["check_publish", "publish"])
async def test_before_5_0_a_refused_large_message_ends_the_connection(case, level, qos, when):
    it = case(level)
    it.connection.errors[when] = AccessError("no")
    wire = wired(level, Publish("a", BIG, qos, 7 if qos else 0))
    await it.feed(wire[: 50 if when == "check_publish" else len(wire)], 11)
    assert it.state() is SessionState.CLOSED
    assert it.answers() == []
    assert len(it.bodies.writers) == (when == "publish")


@pytest.mark.parametrize(("fails_at", "size"), [(0, 300), (1 << 20, 3 << 20)])
async def test_a_disk_without_room_is_an_answer_and_the_connection_goes_on(case, fails_at, size):
    it = case()
    it.bodies.fails_at = fails_at
    await it.feed(wired(5, Publish("a", b"x" * size, 1, 7), Pingreq()), 1 << 18)
    assert it.client.gets() == [Pingresp()]
    (answer,) = it.answers()
    assert (answer.packet_id, answer.reason_code) == (7, 0x97)
    assert it.bodies.writers[0].is_abandoned
    it.bodies.fails_at = None
    await it.sends(Publish("a", BIG, 1, 8))
    assert it.answers() == [Puback(8)]


@pytest.mark.parametrize("level", [3, 4])
async def test_before_5_0_a_disk_without_room_ends_the_connection(case, level):
    it = case(level)
    it.bodies.fails_at = 0
    await it.sends(Publish("a", BIG, 1, 7), Publish("b", BIG, 1, 8))
    assert it.state() is SessionState.CLOSED
    assert (it.published(), it.answers()) == ([], [])
    assert all(writer.is_abandoned for writer in it.bodies.writers)


@pytest.mark.parametrize("step", [1, 100, 10_000])
@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        ("ä€😀".encode() * 50, True),
        ("ä€😀".encode() * 50 + b"\xc3", False),
        (b"a" * 200 + b"\xff" + b"a" * 200, False),
    ],
)
async def test_a_payload_that_is_said_to_be_text_is_checked_as_it_comes(case, body, is_text, step):
    it = case()
    await it.feed(wired(5, Publish("a", body, 1, 7, properties=TEXT), Pingreq()), step)
    assert it.client.gets() == [Pingresp()]
    (answer,) = it.answers()
    assert answer.reason_code == (0 if is_text else ReasonCode.PAYLOAD_FORMAT_INVALID)
    assert len(it.published()) == is_text
    assert it.bodies.writers[0].is_abandoned != is_text


async def test_the_check_of_text_can_be_turned_off(case):
    it = case(payload_format_check=False)
    await it.sends(Publish("a", b"\xff" * 300, 1, 7, properties=TEXT))
    assert it.answers() == [Puback(7)]


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_to_be_retained_passes_through_memory_as_long_as_it_fits(case, level):
    limits = {"packet_bytes_max": 2000, "large_message_max_size": 100_000}
    it = case(level, **limits)
    await it.sends(Publish("a", BIG, 1, 7, True))
    ((message, _),) = it.connection.take("publish")
    assert (message.body, message.retain, it.bodies.writers) == (BIG, True, [])
    # A queue keeps its messages anyway, so there RETAIN means nothing.
    await it.sends(Publish("$queue/a", b"x" * 5000, 1, 8, True))
    ((message, _),) = it.connection.take("publish")
    assert (it.body(message), message.retain) == (b"x" * 5000, False)
    it.answers()
    await it.sends(Publish("a", b"x" * 5000, 1, 9, True))
    assert it.published() == []
    if level == 5:
        (answer,) = it.answers()
        assert (answer.packet_id, answer.reason_code) == (9, ReasonCode.QUOTA_EXCEEDED)
        assert "retained" in answer.properties.reason_string
    else:
        assert it.state() is SessionState.CLOSED


@by_level
async def test_a_large_message_over_its_limit_ends_the_connection_by_its_header(case, level):
    it = case(level, packet_bytes_max=2000, large_message_max_size=4000)
    await it.sends(Publish("a", b"x" * 3900, 0))
    assert len(it.published()) == 1
    await it.sends(wired(level, Publish("a", b"x" * 4100, 0))[:10])
    assert it.state() is SessionState.CLOSED
    if level == 5:
        (packet,) = it.client.gets()
        assert isinstance(packet, Disconnect)
        assert packet.reason_code == ReasonCode.PACKET_TOO_LARGE


def test_the_client_is_told_the_larger_limit(make_client):
    for options, told in (
        ({}, 16 << 20),
        ({"large_message_max_size": 100 << 20}, 100 << 20),
        ({"packet_bytes_max": 4096}, 4096),
    ):
        it = Case(make_client, **options)
        it.client.sends(Connect(client_id="dev", level=5))
        (connack,) = it.client.gets()
        assert connack.properties.maximum_packet_size == told


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (mqtt_raw.publish("a/+", BIG, version=5), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, qos=1), 0x82),
        (mqtt_raw.publish("", BIG, version=5), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, topic_alias=99), 0x94),
        (mqtt_raw.publish("", BIG, version=5, topic_alias=1), 0x82),
        (mqtt_raw.publish("a", BIG, version=5, subscription_id=[1]), 0x82),
    ],
)
async def test_a_header_that_breaks_a_rule_ends_the_connection_before_its_body(
    case, packet, reason
):
    it = case()
    await it.sends((wired(5, Publish("first", BIG)) + packet)[: -len(BIG)])
    assert it.published() == [("topic://first", BIG, 0)], "what came before it counts"
    (answer,) = it.client.gets()
    assert (type(answer), answer.reason_code) == (Disconnect, reason)
    assert it.state() is SessionState.CLOSED


@pytest.mark.parametrize(
    "head",
    [
        b"\x36\xac\x02\x00\x01a\x00\x07\x00",  # QoS 3
        b"\x30\xac\x02\xff\xff",  # a topic that is longer than the packet
        b"\x30\xac\x02\x00\x01\xff\x00",  # a topic that is not UTF-8
        b"\x30\xac\x02\x00\x01a\xff\xff\xff\xff",  # a property length of five bytes
        b"\x30\xac\x02\x00\x01a\xff\x7f",  # properties that are longer than the packet
        b"\x30\xac\x02\x00\x01a\x03\x01\x01\x77",  # no such property
    ],
)
@pytest.mark.parametrize("step", [1, 100])
async def test_a_header_that_cannot_be_read_is_malformed_before_its_body(case, head, step):
    it = case()
    await it.feed(head, step)
    (answer,) = it.client.gets()
    assert (type(answer), answer.reason_code) == (Disconnect, 0x81)


async def test_the_receive_maximum_counts_large_messages(case):
    it = case(receive_maximum=2)
    await it.sends(*(Publish("a", BIG, 1, number) for number in (1, 2)))
    assert it.answers() == [Puback(1), Puback(2)]
    await it.sends(Publish("a", BIG, 2, 1), Publish("a", BIG, 2, 1, dup=True))
    await it.sends(Publish("a", BIG, 1, 2))
    assert len(it.answers()) == 3
    await it.sends(Pubrel(1))
    assert it.answers() == [Pubcomp(1)]
    it.bodies.finish_door.clear()
    await it.sends(*(Publish("a", BIG, 1, number) for number in (1, 2, 3)))
    assert it.state() is SessionState.CONNECTED, "the error waits its turn"
    it.bodies.finish_door.set()
    await settled()
    *answers, packet = it.answers()
    assert it.state() is SessionState.CLOSED
    assert answers == [Puback(1), Puback(2)]
    assert packet.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


# ----------------------------------------------------------------------------------------- the end


@by_level
async def test_a_connection_that_ends_in_the_middle_leaves_nothing(case, level):
    it = case(level)
    await it.sends(wired(level, Publish("a", BIG, 1, 7))[:-1])
    it.client.hangs_up()
    await settled()
    assert it.published() == []
    assert it.bodies.writers[0].is_abandoned
    assert it.connection.take("disconnect") == [(False, False, None)]


@by_level
@pytest.mark.parametrize("is_polite", [True, False])
async def test_what_came_whole_is_published_although_the_client_has_left(case, level, is_polite):
    """``mosquitto_pub`` with QoS 0 sends, says DISCONNECT and closes, all in one go."""

    it = case(level)
    it.bodies.finish_door.clear()
    it.client.sends(
        Publish("1", BIG),
        Publish("2", BIG),
        Publish("3", b"x"),
        *([Disconnect()] if is_polite else []),
    )
    it.client.hangs_up()
    await settled()
    assert it.connection.take("disconnect") == []
    it.bodies.finish_door.set()
    await settled()
    assert [name for name, _, _ in it.published()] == ["topic://1", "topic://2", "topic://3"]
    assert it.connection.take("disconnect") == [(is_polite, False, None)]
    assert it.state() is SessionState.CLOSED


async def test_behind_what_came_whole_a_body_that_did_not_is_given_up(case):
    it = case()
    it.bodies.finish_door.clear()
    it.client.sends(wired(5, *(Publish("a", BIG, 1, n) for n in range(1, 7)))[:-1])
    await settled()
    it.client.hangs_up()
    it.bodies.finish_door.set()
    await settled()
    assert len(it.published()) == 5
    assert [writer.is_abandoned for writer in it.bodies.writers] == [False] * 5 + [True]
    assert it.connection.take("disconnect") == [(False, False, None)]


async def test_a_session_that_is_taken_over_gives_up_what_is_not_published(case):
    it = case()
    it.bodies.finish_door.clear()
    await it.sends(wired(5, Publish("1", BIG), Publish("2", BIG))[:-5])
    it.client.session.closed(ConnectionEndedError("taken-over", "somebody else"))
    it.bodies.finish_door.set()
    await settled()
    assert it.published() == []
    assert all(writer.is_abandoned for writer in it.bodies.writers)


async def test_a_connection_that_was_lost_and_then_taken_over_ends_once(case):
    it = case()
    it.bodies.finish_door.clear()
    await it.sends(Publish("1", BIG))
    it.client.hangs_up()
    it.client.session.closed(ConnectionEndedError("taken-over", "somebody else"))
    it.bodies.finish_door.set()
    await settled()
    assert it.published() == []
    assert len(it.connection.take("disconnect")) == 1


async def test_a_bug_while_writing_ends_the_connection(case, caplog):
    it = case()

    def create(size):
        writer = type(it.bodies).create(it.bodies, size)
        writer.data = None  # writing to it fails
        return writer

    it.bodies.create = create
    await it.sends(Publish("1", BIG))
    assert it.link.is_aborted
    it.client.hangs_up()
    await settled()
    assert "connection failed" in caplog.text


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
