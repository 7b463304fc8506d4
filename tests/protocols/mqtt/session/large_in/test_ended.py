"""Connections of MQTT that end while large messages are on their way to the disk."""

import pytest
from large_fakes import settled
from mqtt_large_in import BIG, by_level, wired

from tidegate.spi import ConnectionEndedError
from tidegate_protocols.mqtt import Disconnect, Publish, SessionState

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
