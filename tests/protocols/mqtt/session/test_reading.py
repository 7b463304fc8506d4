"""Whether a client is read, and how long it has been silent."""

import pytest

from tidegate_protocols.mqtt.session.reading import Pause, Reading

UNREAD_MAX, TIMEOUT_S = 100_000, 60.0


@pytest.fixture
def client(make_client):
    """For its link and its clock; the session itself takes no part."""
    return make_client()


@pytest.fixture
def reading(client):
    client.runtime.timers.clear()
    return Reading(client.link, client.runtime, UNREAD_MAX, TIMEOUT_S)


@pytest.fixture
def silences():
    return []


def test_it_is_read_again_only_when_no_reason_is_left(client, reading):
    for reason in (Pause.BY_BROKER, Pause.AUTHENTICATING, Pause.BY_BROKER):
        reading.pause(reason)
        assert not client.link.is_reading
    reading.resume(Pause.BY_BROKER)
    assert not client.link.is_reading
    reading.resume(Pause.AUTHENTICATING)
    assert client.link.is_reading


def test_a_reason_that_was_not_there_changes_nothing(client, reading):
    reading.pause(Pause.BY_BROKER)
    reading.resume(Pause.UNREAD_REPLIES)
    assert not client.link.is_reading


def test_who_does_not_read_its_answers_is_not_read(client, reading):
    reading.unread.paused()
    reading.unread.wrote(UNREAD_MAX)
    assert client.link.is_reading
    reading.unread.wrote(1)
    assert not client.link.is_reading
    reading.writing_resumed()
    assert client.link.is_reading
    reading.unread.paused()
    reading.unread.wrote(UNREAD_MAX)  # counted anew
    assert client.link.is_reading


def test_silence_is_told_once_and_counts_from_the_last_sign_of_life(client, reading, silences):
    reading.watch(15, lambda: silences.append(client.runtime.now))
    start = client.runtime.now
    client.runtime.advance(10)
    reading.last_heard = client.runtime.time()
    client.runtime.advance(100)
    assert silences == [start + 25]


def test_who_is_not_read_is_not_silent(client, reading, silences):
    reading.watch(15, lambda: silences.append(client.runtime.now))
    reading.pause(Pause.BY_BROKER)
    client.runtime.advance(100)
    reading.resume(Pause.BY_BROKER)
    resumed = client.runtime.now
    client.runtime.advance(100)
    assert silences == [resumed + 15]


def test_without_a_limit_nothing_is_watched(client, reading, silences):
    reading.watch(0, lambda: silences.append(1))
    assert client.runtime.pending_timers == 0


def test_after_the_end_nothing_is_told(client, reading, silences):
    reading.watch(15, lambda: silences.append(1))
    reading.stop()
    reading.stop()
    client.runtime.advance(100)
    assert silences == []
