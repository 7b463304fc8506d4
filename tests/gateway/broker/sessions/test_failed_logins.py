"""Who failed where: what it costs, whom it costs nothing, and that the memory of it is bounded."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scramp.utils import (  # pyright: ignore[reportMissingTypeStubs]
    ScramException,
    saslprep,  # pyright: ignore[reportUnknownVariableType]
)

from tidegate.broker.sessions.failed_logins import (
    ENTRY_BYTES,
    KNOWN_DELAY_MAX_S,
    MANY,
    Attempt,
    FailedLogins,
    address_of,
    counted_name,
)

FREE = 3


def failures(**changes: float) -> FailedLogins:
    arguments: dict[str, float] = {
        "free": FREE,
        "delay_s": 1,
        "delay_max_s": 8,
        "age_s": 100,
        "limit_bytes": 1 << 20,
    }
    return FailedLogins(**(arguments | changes))  # type: ignore[arg-type]


def attempt(address: str = "10.0.0.1", username: str = "alice", client_id: str = "c") -> Attempt:
    return Attempt(address, username, client_id)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("[::1]:5000", "::"),
        ("[2001:db8:1:2:aaaa::1]:1", "2001:db8:1:2::"),
        ("[2001:db8:1:2:bbbb::2]:2", "2001:db8:1:2::"),
        ("[2001:db8:1:3::1]:1", "2001:db8:1:3::"),
        ("[::ffff:10.0.0.1]:9", "10.0.0.1"),
        ("[fe80::1%eth0]:9", "fe80::"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_an_address_is_of_one_customer(peer: str, address: str) -> None:
    assert address_of(peer) == address


@given(st.text(max_size=40))
@example("al\u00adice")
@example("\u1806a\u034f\ufe00b\u2003c")
def test_what_authenticators_compare_as_one_name_counts_as_one(name: str) -> None:
    """By SASLprep, which ours compares by, and without regard to case."""
    try:
        prepared = saslprep(name)
    except ScramException:
        return
    assert counted_name(prepared) == counted_name(name)
    assert counted_name("Alice-1.2") == "alice-1.2" != counted_name("alice-12")


def test_each_failure_doubles_the_delay_up_to_the_longest() -> None:
    table, now, seen = failures(), 0.0, []
    assert table.pause_s(attempt(), now) is None
    for _ in range(9):
        table.failed(attempt(), now)
        pause = table.pause_s(attempt(), now)
        assert pause is not None
        seen.append(pause)
        now += pause
        assert table.pause_s(attempt(), now) == 0
    assert seen == [0, 0, 0, 1, 2, 4, 8, 8, 8]


def test_others_are_not_delayed() -> None:
    table = failures()
    for _ in range(MANY):
        table.failed(attempt(), 0)
    assert table.pause_s(attempt(address="10.0.0.2"), 0) is None
    assert table.pause_s(attempt(username="bob"), 0) is None
    assert table.address_pause_s("10.0.0.1", 0) is None


def test_a_client_that_was_let_in_before_is_not_delayed_by_what_others_try_there() -> None:
    table = failures()
    table.succeeded(attempt(client_id="mine"))
    for _ in range(20):
        table.failed(attempt(client_id="other"), 0)
    assert table.is_known(attempt(client_id="mine"))
    assert table.pause_s(attempt(client_id="mine"), 0) is None
    for _ in range(20):
        table.failed(attempt(client_id="mine"), 0)
    assert table.pause_s(attempt(client_id="mine"), 0) == KNOWN_DELAY_MAX_S


def test_being_let_in_forgives_nothing_to_who_guesses_there() -> None:
    table = failures()
    for _ in range(FREE + 1):
        table.failed(attempt(), 0)
    table.succeeded(attempt(client_id="right"))
    assert table.pause_s(attempt(), 0) == 1


def test_one_address_that_tries_many_users_is_slowed_down() -> None:
    table = failures()
    for number in range(FREE * MANY + 1):
        table.failed(attempt(username=f"user{number}"), 0)
    assert table.address_pause_s("10.0.0.1", 0) == 1
    assert table.address_pause_s("10.0.0.1", 1) == 0
    assert table.address_pause_s("10.0.0.2", 0) is None


def test_one_user_whom_many_addresses_try_gives_them_one_try_each() -> None:
    table = failures()
    for number in range(FREE * MANY + 1):
        table.failed(attempt(address=f"10.1.0.{number}"), 0)
    assert table.pause_s(attempt(address="10.1.0.1"), 0) == 1
    assert table.pause_s(attempt(address="10.2.0.1"), 0) is None


def test_failures_are_forgotten() -> None:
    table = failures()
    for _ in range(10):
        table.failed(attempt(), 0)
    assert table.pause_s(attempt(), 101) is None
    table.failed(attempt(), 101)
    assert table.pause_s(attempt(), 101) == 0


def test_without_a_delay_nobody_waits() -> None:
    table = failures(delay_s=0)
    for number in range(100):
        table.failed(attempt(username=f"user{number % 2}"), 0)
    assert table.pause_s(attempt(username="user0"), 0) is None
    assert table.address_pause_s("10.0.0.1", 0) is None


def test_a_flood_takes_no_more_than_its_part_and_nothing_from_known_clients() -> None:
    limit = 1 << 16
    table = failures(limit_bytes=limit)
    table.succeeded(attempt(client_id="mine"))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(2000):
            table.failed(attempt(username=f"{number}" + "x" * 2000), 0)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert table.size_bytes <= limit // 2 + ENTRY_BYTES
    assert taken <= limit  # what is said of an entry is not less than it takes
    assert table.is_known(attempt(client_id="mine"))
    assert table.address_pause_s("10.0.0.1", 0) == 1  # of the flood itself everything is known
    for number in range(2000):
        table.succeeded(attempt(client_id=str(number)))
    assert table.size_bytes <= limit
