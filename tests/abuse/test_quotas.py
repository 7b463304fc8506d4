"""What one principal may have, and keep: sessions, subscriptions, queues, retained messages, wills."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mqtt_raw as raw
import pytest
from attack import MB, Attacker, Victim, connected, frame, frame_of

#: Four header lines of 15 KB.
HEADERS = {f"note{number}": "n" * 15_000 for number in range(4)}


def mqtt_connects(victim: Victim, packets: Iterable[bytes]) -> tuple[list[Attacker], list[int]]:
    """Connect with each of *packets*. Returns: who is connected now, and what each was told."""
    attackers, told = [], []
    for packet in packets:
        attacker = Attacker(victim.mqtt_port, packet)
        attackers.append(attacker)
        while len(attacker.heard) < 4:
            data = attacker.socket.recv(100)
            assert data, "closed without a CONNACK"
            attacker.heard += data
        told.append(attacker.heard[3])
    return attackers, told


def sessions(victim: Victim, count: int, prefix: str = "kept") -> list[int]:
    """Leave sessions behind. Returns: what each client was told; 0 is a welcome."""
    packets = (raw.connect(f"{prefix}{number}", clean=False) for number in range(count))
    attackers, told = mqtt_connects(victim, packets)
    for attacker in attackers:
        attacker.flood([raw.disconnect()])
        attacker.rest()
        attacker.close()
    return told


def forget(victim: Victim, count: int, prefix: str = "kept") -> None:
    """The sessions end."""
    attackers, _ = mqtt_connects(
        victim, (raw.connect(f"{prefix}{number}") for number in range(count))
    )
    for attacker in attackers:
        attacker.close()


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


def durable_subscriptions(victim: Victim, count: int, prefix: str = "name") -> bytes:
    """Subscribe, durably, and leave, again and again on one connection. Returns: what it was told."""
    with connected(victim, **{"client-id": "durable"}) as attacker:
        for number in range(count):
            attacker.flood(
                [
                    frame_of(
                        "SUBSCRIBE",
                        {
                            "id": number,
                            "destination": f"/topic/t{number}",
                            "durable-subscription-name": f"{prefix}{number}",
                        },
                    ),
                    frame("UNSUBSCRIBE", id=number, receipt=number),
                ]
            )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


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


def retained(victim: Victim, count: int) -> bytes:
    """Retain little bodies with 60 KB of headers. Returns: what the client was told."""
    with connected(victim) as attacker:
        attacker.flood(
            [
                frame_of(
                    "SEND", {"destination": f"/topic/kept/{n}", "retain": "true", **HEADERS}, b"x"
                )
                for n in range(count)
            ]
        )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


def test_retained_messages_count_with_their_headers(victim: Victim) -> None:
    assert b"quotas.retained_limit" in retained(victim, 100)


def test_a_vm_cursor_counts_headers(victim: Victim) -> None:
    """Its producer is throttled: what is not read stays in the buffers of two sockets."""
    one = frame_of("SEND", {"destination": "/queue/vm.headers", **HEADERS}, b"x")
    with connected(victim) as attacker:
        assert attacker.flood([one] * (64 * MB // len(one))) < 40 * MB
    assert victim.growth_bytes < 40 * MB


def wills(victim: Victim, count: int) -> list[int]:
    """Connections with wills of 60 KB, all at a time. Returns: what each was told."""
    packets = (raw.connect(f"will{n}", will=("will", bytes(60_000))) for n in range(count))
    attackers, told = mqtt_connects(victim, packets)
    for attacker in attackers:
        attacker.flood([raw.disconnect()])
        attacker.close()
    return told


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
