"""What clients make the gateway hold, and where that ends. With the limit raised it grows: the controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attack import MB, Attacker, Victim, connected, frame

#: Every attack tries to make it grow by so much; more than an hour's worth of noise, little work.
ATTACK_BYTES = 96 * MB
#: So much it may: what the limit lets in, and what it takes to deal with 8 MB, which is what the loop
#: reads from one socket at a time.
GROWTH_MAX = 56 * MB


def receipts(attacker: Attacker) -> int:
    """Ask for receipts of 15 KB each, and never read them."""
    one = frame("SEND", b"x", destination="/topic/nobody", receipt="r" * 15_000)
    return attacker.flood([one] * (ATTACK_BYTES // len(one)))


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


def test_who_never_reads_is_closed(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='unread_output_max = "64kb"\nunread_output_timeout = "100ms"')
    with connected(victim) as attacker:
        assert receipts(attacker) < ATTACK_BYTES * 3 // 4
        attacker.rest()  # it ends
    assert "unread_output_timeout" in victim.log.read_text()


def transactions(attacker: Attacker) -> bytes:
    """Fill open transactions, with little in the bodies and much in the headers."""
    attacker.flood(_transactions(), patience_s=20)
    attacker.flood([frame("DISCONNECT", receipt="end")])
    return attacker.rest()


def _transactions() -> Iterator[bytes]:
    per_transaction = 300
    send = b"".join(
        frame("SEND", b"x", destination="/queue/held", transaction="%d", note="n" * 15_000)
        for _ in range(per_transaction)
    )
    for number in range(ATTACK_BYTES // (per_transaction * 15_000)):
        yield frame("BEGIN", transaction=number)
        yield send.replace(b"transaction:%d", b"transaction:%d" % number)


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
