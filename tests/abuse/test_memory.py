"""What clients make the gateway hold, and where that ends. With the limit raised it grows: the controls."""

from __future__ import annotations

from collections.abc import Callable

import mqtt_raw as raw
import pytest
from attack import CONNECT, MB, Attacker, Victim, connected, frame, frame_of
from attacks import (
    ATTACK_BYTES,
    MQTT_CONNECT,
    NOTES,
    bodies_before_login,
    close_all,
    fill_queues,
    filters_of_many_levels,
    half_a_message,
    half_connects,
    metrics,
    names_without_end,
    open_transactions,
    receipts,
    take,
    transactions,
)

#: So much it may: what the limit lets in, and what it takes to deal with 8 MB, which is what the loop
#: reads from one socket at a time.
GROWTH_MAX = 56 * MB


def test_receipts_that_are_never_read_stop_the_reading(victim: Victim) -> None:
    with connected(victim) as attacker:
        assert receipts(attacker) < ATTACK_BYTES * 3 // 4
        assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_receipts_that_are_never_read(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='connection_held_limit = "1gb"', stomp='unread_output_max = "1gb"')
    with connected(victim) as attacker:
        assert receipts(attacker) > ATTACK_BYTES * 9 // 10
        assert victim.growth_bytes > ATTACK_BYTES // 2


@pytest.mark.long
def test_who_never_reads_is_closed(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='unread_output_max = "64kb"\nunread_output_timeout = "100ms"')
    with connected(victim) as attacker:
        assert receipts(attacker) < ATTACK_BYTES * 3 // 4
        attacker.rest()  # it ends
    assert "unread_output_timeout" in victim.log.read_text()


def test_open_transactions_are_refused_beyond_what_a_connection_may_hold(victim: Victim) -> None:
    with connected(victim) as attacker:
        heard = transactions(attacker)
    assert heard.startswith(b"ERROR\n")
    assert b"broker.connection_held_limit" in heard
    assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_open_transactions(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim()
    with connected(victim) as attacker:
        assert transactions(attacker).startswith(b"RECEIPT\n")
    assert victim.growth_bytes > ATTACK_BYTES // 2


def test_a_connect_has_no_body(victim: Victim) -> None:
    for attacker in bodies_before_login(victim):
        with attacker:
            assert b"CONNECT must not have a body" in attacker.rest()
    assert victim.growth_bytes < GROWTH_MAX


def test_a_connect_has_no_body_of_unknown_length_either(victim: Victim) -> None:
    with victim.attacker() as attacker:
        attacker.flood([CONNECT[:-1], *[b"x" * MB] * 16])
        assert b"CONNECT must not have a body" in attacker.rest()


def test_what_is_never_acknowledged_ends_the_deliveries(victim: Victim) -> None:
    fill_queues(victim)
    with connected(victim) as attacker:
        assert take(attacker, 7 * MB) < 24 * MB
    assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_what_is_never_acknowledged(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='cursor_memory_limit = "8mb"')
    fill_queues(victim)
    with connected(victim) as attacker:
        assert take(attacker, 60 * MB) > 60 * MB
    assert victim.growth_bytes > 56 * MB


def queue_subscriptions(victim: Victim) -> bytes:
    """Subscribe to one queue again and again. Returns: what the client is told."""
    with connected(victim) as attacker:
        attacker.flood(
            frame("SUBSCRIBE", id=number, destination="/queue/vm.headers") for number in range(9000)
        )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


@pytest.mark.long
def test_subscriptions_to_queues_count(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(
        broker='connection_held_limit = "8mb"', stomp="subscriptions_max = 1000000"
    )
    assert b"broker.connection_held_limit" in queue_subscriptions(victim)


def test_strangers_together_hold_no_more_than_is_allowed(victim: Victim) -> None:
    attackers = half_connects(victim)
    with Attacker(victim.mqtt_port) as client:  # who says who it is gets in, beside them
        client.flood([MQTT_CONNECT])
        client.until(b"\x20\x02\0\0")
    close_all(attackers)
    assert victim.growth_bytes < GROWTH_MAX
    assert "broker.login_input_limit" in victim.log.read_text()


@pytest.mark.long
def test_control_strangers(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='login_input_limit = "1gb"')
    attackers = half_connects(victim)
    with Attacker(victim.mqtt_port) as client:
        client.flood([MQTT_CONNECT])
        client.until(b"\x20\x02\0\0")
    close_all(attackers)
    assert victim.growth_bytes > 60 * MB


def test_half_a_message_is_no_longer_than_what_a_connection_may_hold(victim: Victim) -> None:
    with connected(victim) as attacker:
        half_a_message(attacker)
        assert b"broker.connection_held_limit" in attacker.until(b"\0")
    assert victim.growth_bytes < GROWTH_MAX // 2


@pytest.mark.long
def test_control_half_a_message(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim()
    with connected(victim) as attacker:
        half_a_message(attacker)
        assert victim.growth_bytes > 30 * MB


@pytest.mark.long
def test_half_a_message_has_a_time_limit(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='frame_timeout = "100ms"', mqtt='frame_timeout = "100ms"')
    with connected(victim) as attacker:
        head = frame("SEND", destination="/topic/half", retain="true", content_length=9 * MB)[:-1]
        attacker.flood([head, bytes(MB // 2)])
        assert b"frame_timeout" in attacker.until(b"\0")
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT, raw.publish("half", bytes(9 * MB), retain=True)[: MB // 2]])
        attacker.rest()  # it ends
    assert victim.log.read_text().count("frame_timeout") >= 2


@pytest.mark.long
def test_half_a_streamed_body_has_a_time_limit(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='body_timeout = "100ms"', mqtt='body_timeout = "100ms"')
    with connected(victim) as attacker:
        head = frame("SEND", destination="/queue/half", content_length=90 * MB)[:-1]
        attacker.flood([head, bytes(MB)])
        assert b"body_timeout" in attacker.until(b"\0")
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT, raw.publish("half", bytes(9 * MB), qos=1, packet_id=1)[:MB]])
        attacker.rest()  # it ends
    assert victim.log.read_text().count("body_timeout") >= 2


def test_names_that_are_used_once_are_not_kept(victim: Victim) -> None:
    names_without_end(victim)
    assert victim.growth_bytes < GROWTH_MAX


def test_filters_have_no_more_levels_than_are_allowed(victim: Victim) -> None:
    assert filters_of_many_levels(victim) == b"\x80" * 20
    assert victim.growth_bytes < GROWTH_MAX // 2


@pytest.mark.long
def test_control_filters_of_many_levels(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker="levels_max = 65535")
    assert filters_of_many_levels(victim) == b"\0" * 20
    assert victim.growth_bytes > 3 * GROWTH_MAX // 2


@pytest.mark.long
def test_memory_follows_what_is_counted(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(
        broker='system_topics_interval = "1s"\nconnection_held_limit = "400mb"',
    )
    with connected(victim) as one, connected(victim) as two, connected(victim) as three:
        one.flood(open_transactions(), patience_s=20)
        one.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        one.until(b"there")
        half_a_message(two)
        three.flood(
            (
                frame_of("SEND", {"destination": f"/topic/k/{n}", "retain": "true"} | NOTES, b"x")
                for n in range(600)
            ),
            patience_s=20,
        )
        three.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        three.until(b"there")
        counted = metrics(victim, "held/#")
        while counted["held/input/bytes"] < 44 * MB:  # it may have been read since
            counted = metrics(victim, "held/#")
        assert counted["held/bytes"] > 150 * MB
        assert victim.rss_bytes - victim.base_bytes < counted["held/bytes"] * 1.5 + 24 * MB
