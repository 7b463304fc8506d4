"""Heart-beats on a loop whose time stands still."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp._heartbeat import HeartBeat, negotiate, parse


@pytest.mark.parametrize(
    ("text", "pair"), [("0,0", (0, 0)), ("10000,500", (10000, 500)), ("1, 2", (1, 2))]
)
def test_the_header_is_read(text, pair):
    assert parse(text) == pair


@pytest.mark.parametrize(
    "text", ["", "1", "1,2,3", "-1,0", "a,b", "1.5,2", "1,", "9999999999,0", "٣,٣"]
)
def test_other_headers_are_refused(text):
    with pytest.raises(PeerProtocolError, match="milliseconds"):
        parse(text)


@pytest.mark.parametrize(
    ("client", "server", "agreed"),
    [
        ((0, 0), (1000, 1000), (0, 0)),
        ((5000, 0), (1000, 1000), (0, 5000)),
        ((0, 5000), (1000, 1000), (5000, 0)),
        ((10, 20), (1000, 2000), (1000, 2000)),
        ((10, 20), (0, 0), (0, 0)),
    ],
)
def test_the_larger_interval_of_each_direction_counts(client, server, agreed):
    assert negotiate(client, server) == agreed


class Pulse:
    def __init__(self, loop, send_s=0.0, receive_s=0.0, grace_factor=2.0):
        self.loop, self.writes, self.expired = loop, [], []
        self.beat = HeartBeat(
            loop,
            send_s=send_s,
            receive_s=receive_s,
            grace_factor=grace_factor,
            write=lambda: self.writes.append(loop.time()),
            expired=self.expired.append,
        )


def test_a_silent_gateway_writes_within_every_interval(loop):
    pulse = Pulse(loop, send_s=10)
    loop.advance(100)
    times = [100.0, *pulse.writes]
    assert max(b - a for a, b in itertools.pairwise(times)) <= 10


@given(st.lists(st.floats(0.1, 12), max_size=20))
def test_never_more_than_an_interval_between_two_writes(make_harness, pauses):
    loop = make_harness().loop
    pulse = Pulse(loop, send_s=10)
    writes = pulse.writes
    for pause in pauses:
        loop.advance(pause)
        pulse.beat.is_silent = False  # the session writes
        writes.append(loop.time())
    loop.advance(30)
    times = [100.0, *sorted(writes)]
    assert max(b - a for a, b in itertools.pairwise(times)) <= 10.000001


def test_a_gateway_that_writes_enough_sends_no_heart_beats(loop):
    pulse = Pulse(loop, send_s=10)
    for _ in range(20):
        loop.advance(4)
        pulse.beat.is_silent = False
    assert pulse.writes == []


def test_a_peer_is_lost_only_after_the_grace(loop):
    pulse = Pulse(loop, receive_s=10, grace_factor=3)
    loop.advance(29.9)
    assert pulse.expired == []
    loop.advance(1)
    assert pulse.expired == [pytest.approx(30.1)]
    loop.advance(100)
    assert len(pulse.expired) == 1


def test_any_byte_starts_the_time_again(loop):
    pulse = Pulse(loop, receive_s=10)
    for _ in range(10):
        loop.advance(19)
        pulse.beat.heard_at = loop.time()
    assert pulse.expired == []


def test_bytes_found_at_the_second_look_save_the_peer(loop):
    pulse = Pulse(loop, receive_s=10)
    loop.advance(20.05)  # the timer ran before the socket was read
    pulse.beat.heard_at = loop.time()
    loop.advance(19)
    assert pulse.expired == []
    loop.advance(2)
    assert len(pulse.expired) == 1


def test_a_peer_that_is_not_read_is_not_lost(loop):
    pulse = Pulse(loop, receive_s=10)
    pulse.beat.is_reading = False
    loop.advance(200)
    pulse.beat.is_reading = True
    assert pulse.expired == []
    loop.advance(41)
    assert len(pulse.expired) == 1


def test_nothing_runs_without_intervals_or_after_stop(loop):
    Pulse(loop)
    assert loop.live_timers == []
    pulse = Pulse(loop, send_s=1, receive_s=1)
    assert len(loop.live_timers) == 2
    pulse.beat.stop()
    pulse.beat.stop()
    assert loop.live_timers == []
