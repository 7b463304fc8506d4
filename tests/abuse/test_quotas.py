"""What one principal may have, and keep: sessions, subscriptions, queues, retained messages, wills."""

from __future__ import annotations

from collections.abc import Callable

import mqtt_raw as raw
import pytest
from attack import MB, Attacker, Victim, connected, frame, frame_of
from attacks import HEADERS, durable_subscriptions, forget, retained, sessions, wills


def test_a_principal_keeps_so_many_sessions_and_no_more(victim: Victim) -> None:
    told = sessions(victim, 45)
    assert told[:40] == [0] * 40
    assert set(told[40:]) == {3}  # server unavailable
    assert sessions(victim, 40) == [0] * 40, "those that it has are taken up"
    forget(victim, 45)


@pytest.mark.long
def test_what_is_kept_is_counted_again_after_a_restart(make_victim: Callable[..., Victim]) -> None:
    quotas = '[[quotas]]\nprincipal = "*"\nsessions_max = 5\nsubscriptions_max = 5'
    victim = make_victim(extra=quotas)
    assert sessions(victim, 5) == [0] * 5
    assert b"ERROR" not in durable_subscriptions(victim, 5)
    victim.kill()
    victim.start()
    assert sessions(victim, 1, "another") == [3]
    assert b"quotas.subscriptions_max" in durable_subscriptions(victim, 1, "another")


def test_durable_subscriptions_of_one_connection_one_after_the_other_count(victim: Victim) -> None:
    heard = durable_subscriptions(victim, 70)
    assert b"user anonymous has 60 subscriptions" in heard
    assert b"quotas.subscriptions_max" in heard


def test_queues_that_are_made_by_using_them_count(victim: Victim) -> None:
    with connected(victim) as attacker:
        attacker.flood(
            frame("SEND", b"x", destination=f"/queue/q{number}", receipt=number)
            for number in range(60)
        )
        heard = attacker.rest()
    assert b"quotas.queues_max" in heard


def test_retained_messages_count_with_their_headers(victim: Victim) -> None:
    assert b"quotas.retained_limit" in retained(victim, 100)


def test_a_vm_cursor_counts_headers(victim: Victim) -> None:
    """Its producer is throttled: what is not read stays in the buffers of two sockets."""
    one = frame_of("SEND", {"destination": "/queue/vm.headers", **HEADERS}, b"x")
    with connected(victim) as attacker:
        assert attacker.flood([one] * (64 * MB // len(one))) < 40 * MB
    assert victim.growth_bytes < 40 * MB


@pytest.mark.long
def test_wills_fill_what_a_principal_may_have_held(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(extra='[[quotas]]\nprincipal = "*"\nheld_limit = "2mb"')
    told = wills(victim, 60)
    assert 20 <= sum(code == 0 for code in told) <= 34
    assert set(told) == {0, 3}
    assert set(wills(victim, 20)) == {0}, "what went is free again"


@pytest.mark.long
def test_control_wills(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim()
    assert set(wills(victim, 600)) == {0}
    assert victim.growth_bytes > 25 * MB


@pytest.mark.long
def test_a_client_of_mqtt_5_is_told_which_kind_of_limit_it_is(
    make_victim: Callable[..., Victim],
) -> None:
    """Quota exceeded (0x97), wherever it has had its share: CONNACK, SUBACK, PUBACK."""
    quota = '[[quotas]]\nprincipal = "*"\nsessions_max = 1\nsubscriptions_max = 1\nqueues_max = 1'
    victim = make_victim(extra=quota + '\nretained_limit = "1kb"')
    with Attacker(victim.mqtt_port) as client:
        client.flood([raw.connect("one", version=raw.V5, clean=False, session_expiry=60)])
        client.until(b"\x20\x0b\0\0")
        filters = [("a", 1), ("b", 1)]
        client.flood([raw.subscribe(1, *filters, version=raw.V5)])
        assert client.until(b"\x01\x97")
        client.flood(
            [
                raw.publish("$queue/a", b"x", qos=1, packet_id=2, version=raw.V5),
                raw.publish("$queue/b", b"x", qos=1, packet_id=3, version=raw.V5),
                raw.publish("r", bytes(2000), qos=1, packet_id=4, retain=True, version=raw.V5),
            ]
        )
        assert client.until(b"\0\x04\x97")
        with Attacker(victim.mqtt_port) as other:
            other.flood([raw.connect("two", version=raw.V5, clean=False, session_expiry=60)])
            assert other.rest()[2:4] == b"\0\x97"
