"""Names of destinations, in and out."""

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp.codec.destinations import (
    canonical,
    temporary,
    to_publish,
    to_stomp,
    to_subscribe,
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/queue/a", "queue://a"),
        ("queue://a", "queue://a"),
        ("/topic/a.b/c", "topic://a.b/c"),
        ("topic://a", "topic://a"),
        ("/queue//topic/x", "queue:///topic/x"),
    ],
)
def test_both_spellings_mean_the_same(written, meant):
    assert canonical(written) == to_publish(written) == to_subscribe(written) == meant
    assert canonical(to_stomp(meant)) == meant


@pytest.mark.parametrize(
    "written", ["a", "/a", "/queues/a", "/temp-queue/a", "", "QUEUE://a", "/queue"]
)
def test_other_names_are_refused_with_a_hint(written):
    assert canonical(written) is None
    for check in (to_publish, to_subscribe):
        with pytest.raises(PeerProtocolError, match="write /queue/NAME or /topic/NAME"):
            check(written)


@pytest.mark.parametrize("written", ["/queue/", "/topic/a\0b", "queue://" + "x" * 65536])
def test_impossible_names_are_refused(written):
    for check in (to_publish, to_subscribe):
        with pytest.raises(PeerProtocolError, match="destination"):
            check(written)


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("/topic/$queue.a", ""),
        ("topic://$queue.>", ""),
        ("/topic/$share.g.a", ""),
        ("$queue.a", "MULTICAST"),
    ],
)
def test_a_topic_that_mqtt_would_take_for_something_else_is_refused(written, kind):
    for check in (to_publish, to_subscribe):
        with pytest.raises(PeerProtocolError, match="a special meaning in MQTT"):
            check(written, kind)


@pytest.mark.parametrize("written", ["/queue/$queue.a", "/topic/$queue", "/topic/$queues.a"])
def test_names_that_only_look_like_it_are_names(written):
    assert to_stomp(to_publish(written)) == to_stomp(to_subscribe(written)) == written


def test_wildcards_are_for_subscriptions():
    assert to_subscribe("/topic/a.*.>") == "topic://a.*.>"
    with pytest.raises(PeerProtocolError, match="wildcard"):
        to_publish("/topic/a.*")
    with pytest.raises(PeerProtocolError, match="whole level"):
        to_subscribe("/topic/a*")


@pytest.mark.parametrize(
    ("written", "kind", "meant"),
    [
        ("a.b", "ANYCAST", "queue://a.b"),
        ("a.b", "MULTICAST", "topic://a.b"),
        ("/queue/a", "MULTICAST", "queue://a"),
        ("topic://a", "ANYCAST", "topic://a"),
    ],
)
def test_a_routing_type_chooses_for_a_bare_name_only(written, kind, meant):
    assert to_publish(written, kind) == to_subscribe(written, kind) == meant


@pytest.mark.parametrize("kind", ["anycast", "QUEUE", "ANYCAST,MULTICAST"])
def test_an_unknown_routing_type_is_refused(kind):
    with pytest.raises(PeerProtocolError, match="write ANYCAST or MULTICAST"):
        to_publish("a", kind)


def test_a_routing_type_gives_no_meaning_to_an_unknown_prefix():
    with pytest.raises(PeerProtocolError, match="write /queue/NAME"):
        to_publish("/exchange/a", "ANYCAST")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/temp-queue/a", "queue://a"),
        ("/temp-topic/a.b", "topic://a.b"),
        ("/temp-queue/", "queue://"),
        ("/queue/a", None),
        ("temp-queue/a", None),
        ("/temp-queue", None),
    ],
)
def test_temporary_names_are_told_from_others(written, meant):
    assert temporary(written) == meant
