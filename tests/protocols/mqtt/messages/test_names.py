"""MQTT names and canonical destinations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.spi import AccessError, LocalProtocolError, RequestError, names
from tidegate_protocols.mqtt.messages.names import (
    CACHE_COUNT_MAX,
    CACHED_NAME_LENGTH_MAX,
    DESTINATIONS,
    FilterTarget,
    NameCache,
    destination_of,
    target_of,
    topic_field,
    topic_of,
)


@pytest.mark.parametrize(
    ("topic", "destination"),
    [
        ("a", "topic://a"),
        ("sensors/room 1/temp", "topic://sensors.room 1.temp"),
        ("a/b.c", "topic://a.b/c"),
        ("/a/", "topic://.a."),
        ("a>*", "topic://a#+"),
        ("$queue/orders", "queue://orders"),
        ("$queue/orders/new", "queue://orders.new"),
        ("$queue/$queue/x", "queue://$queue.x"),
        ("$aws/things", "topic://$aws.things"),
        ("$queues/x", "topic://$queues.x"),
    ],
)
def test_a_topic_name_has_one_destination_and_comes_back(topic, destination):
    assert destination_of(topic) == destination
    assert DESTINATIONS[topic] == destination
    assert topic_of(destination) == topic


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$share/g/a"])
def test_the_gateways_own_topics_cannot_be_published_to(topic):
    with pytest.raises(AccessError) as caught:
        destination_of(topic)
    assert caught.value.destination == topic


def test_a_queue_needs_a_name():
    with pytest.raises(RequestError):
        destination_of("$queue/")


@pytest.mark.parametrize(
    ("topic_filter", "target"),
    [
        ("a/b", FilterTarget("topic://a.b")),
        ("a/+/c", FilterTarget("topic://a.*.c")),
        ("#", FilterTarget("topic://>")),
        ("+/+", FilterTarget("topic://*.*")),
        ("a/#", FilterTarget("topic://a.>")),
        ("a/>", FilterTarget("topic://a.#")),
        ("$queue/orders", FilterTarget("queue://orders")),
        ("$queue/orders/+", FilterTarget("queue://orders.*")),
        ("$share/g/a/#", FilterTarget("topic://a.>", "g")),
        ("$share/g//", FilterTarget("topic://.", "g")),
        ("$share/g/$queue/x", FilterTarget("queue://x")),
        ("$SYS/#", FilterTarget("topic://$SYS.>")),
    ],
)
def test_a_filter_has_one_target(topic_filter, target):
    assert target_of(topic_filter) == target


@pytest.mark.parametrize(
    "topic_filter",
    [
        "$queue/",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/",
    ],
)
def test_a_well_formed_filter_may_still_be_refused(topic_filter):
    with pytest.raises(ValueError, match=r".+"):
        target_of(topic_filter)


@pytest.mark.parametrize(
    ("topic_filter", "own"),
    [("a/#", True), ("$queue/a", False), ("$share/g/a", False)],
)
def test_what_a_queue_or_a_group_holds_is_nobodys_own(topic_filter, own):
    assert target_of(topic_filter).is_own is own


topic_names = st.text(
    st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda name: not name.startswith("$"))


@settings(deadline=None)
@given(topic_names)
def test_every_topic_name_survives_the_way_there_and_back(topic):
    destination = destination_of(topic)
    names.check_name(names.name_of(destination))
    assert topic_of(destination) == topic
    queue = destination_of("$queue/" + topic)
    assert names.is_queue(queue)
    assert topic_of(queue) == "$queue/" + topic


@settings(deadline=None)
@given(topic_names)
def test_a_filter_without_wildcards_names_the_destination_of_the_topic(topic):
    assert target_of(topic).destination == destination_of(topic)


def test_a_topic_field_has_its_length_in_front():
    assert topic_field("topic://a.b") == b"\x00\x03a/b"


@settings(deadline=None)
@given(topic_names, st.sampled_from([names.topic, names.queue]))
def test_a_topic_field_says_what_topic_of_says(topic, kind):
    destination = kind(names.swap_separators(topic))
    assert topic_field(destination)[2:] == topic_of(destination).encode()


def test_a_name_that_is_too_long_with_its_prefix_cannot_be_said():
    topic_field("topic://" + "x" * 65_535)
    with pytest.raises(LocalProtocolError):
        topic_field("queue://" + "x" * 65_535)
    with pytest.raises(LocalProtocolError):
        topic_field("topic://\ud800")


def test_the_cache_is_bounded_in_names_and_their_length():
    made: list[str] = []

    def make(name: str) -> str:
        made.append(name)
        return name.upper()

    cache = NameCache(make)
    assert [cache["a"], cache["a"]] == ["A", "A"]
    assert made == ["a"]
    long = "x" * (CACHED_NAME_LENGTH_MAX + 1)
    assert cache[long] == cache[long] == long.upper()
    assert made.count(long) == 2
    for number in range(2 * CACHE_COUNT_MAX):
        assert cache[str(number)] == str(number)
        assert len(cache) <= CACHE_COUNT_MAX
