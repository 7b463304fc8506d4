"""Clients that do not read, half a frame that stays open, and heart-beats."""

import logging

import pytest

from tidegate.spi import Held
from tidegate_protocols.stomp import StompOptions


class TestFlow:
    def test_throttle_stops_and_resumes_reading(self, harness):
        harness.connect()
        harness.session.throttle(True)
        assert not harness.link.is_reading
        harness.session.throttle(False)
        assert harness.link.is_reading

    def test_a_slow_client_is_told_to_the_broker(self, harness):
        harness.connect()
        harness.session.pause_writing()
        harness.session.resume_writing()
        assert harness.connection.take() == [("writable", False), ("writable", True)]

    def test_redelivered_messages_are_marked(self, harness):
        harness.connect()
        harness.subscribe()
        (frame,) = harness.deliver("1", 5, delivery_count=2)
        assert frame.headers["redelivered"] == "true"
        (frame,) = harness.deliver("1", 6)
        assert "redelivered" not in frame.headers

    def test_a_page_of_messages_is_one_write(self, harness):
        harness.connect()
        harness.subscribe()
        harness.link.written.clear()
        frames = harness.deliver("1", *range(1, 100))
        assert [f.headers["message-id"] for f in frames] == [f"st0re-{n}" for n in range(1, 100)]


class TestHalfAFrame:
    """Of a client that asked for no heart-beats: nothing else would ever end its connection."""

    @pytest.mark.parametrize("half", ["S", "\r", "SEND\ndestination:/queue/a\n\n" + "x" * 60_000])
    def test_does_not_stay_open(self, make_harness, half):
        harness = make_harness(StompOptions(frame_timeout=10.0))
        harness.connect(heart_beat="0,0")
        harness.feed(half)
        harness.loop.advance(9.9)
        assert harness.link.written == []
        harness.loop.advance(0.1)
        assert "(frame_timeout)" in harness.error().headers["message"]
        assert harness.loop.live_timers == []

    def test_that_comes_with_the_connect_does_not_either(self, make_harness):
        harness = make_harness(StompOptions(frame_timeout=10.0))
        harness.feed("CONNECT\naccept-version:1.2\n\n\0SEND\n")
        harness.loop.advance(10)
        assert [frame.command for frame in harness.frames()] == ["CONNECTED", "ERROR"]
        assert harness.link.is_closing

    def test_that_goes_on_on_a_thin_line_is_taken(self, make_harness):
        harness = make_harness(StompOptions(frame_timeout=10.0))
        harness.connect()
        frame = "SEND\ndestination:/queue/a\n\n" + "x" * 3000 + "\0"
        for start in range(0, len(frame), 120):
            harness.feed(frame[start : start + 120])
            harness.loop.advance(1)
        assert [call[0] for call in harness.connection.take("holds")] == ["publish"]
        harness.loop.advance(100)
        assert harness.frames() == []
        assert harness.loop.live_timers == []

    def test_is_counted_when_it_stays(self, make_harness):
        harness = make_harness(StompOptions(frame_timeout=10.0))
        harness.connect()
        harness.feed("SEND\ndestination:/queue/a\n\n")
        harness.feed("x" * 2000)
        harness.loop.advance(10)
        assert harness.connection.take() == [("holds", Held.INPUT, 2027)]

    def test_of_a_client_that_is_not_read_may_stay(self, make_harness):
        harness = make_harness(StompOptions(frame_timeout=10.0))
        harness.connect()
        harness.feed("SEND\n")
        harness.session.throttle(True)
        harness.loop.advance(15)
        harness.session.throttle(False)
        harness.loop.advance(14)
        assert not harness.link.is_closing
        harness.loop.advance(1)
        assert harness.link.is_closing


class TestHeartBeats:
    def test_are_sent_as_negotiated(self, harness):
        harness.connect(heart_beat="0,4000")
        harness.loop.advance(4)
        assert b"\n" in harness.link.written
        assert set(harness.link.written) == {b"\n"}

    def test_are_not_sent_to_a_client_that_does_not_read(self, harness):
        harness.connect(heart_beat="0,4000")
        harness.session.pause_writing()
        harness.loop.advance(40)
        assert harness.link.written == []

    def test_missing_ones_end_the_connection_and_say_when_the_peer_was_heard(self, harness, caplog):
        caplog.set_level(logging.INFO)
        harness.connect(heart_beat="5000,0")
        for _ in range(5):
            harness.loop.advance(9)
            harness.feed("\n")
        assert harness.frames() == []
        harness.loop.advance(10.2)
        assert "nothing received for 101" in harness.error().headers["message"]
        assert "heart-beat missed peer=10.0.0.9:5555 last_heard_ms=10" in caplog.text
        assert harness.loop.live_timers == []
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_any_byte_counts(self, harness):
        harness.connect(heart_beat="5000,0")
        for byte in "SEND\nx":
            harness.loop.advance(9)
            harness.feed(byte)
        assert harness.frames() == []

    def test_a_throttled_client_is_not_missed(self, harness):
        harness.connect(heart_beat="5000,0")
        harness.session.throttle(True)
        harness.loop.advance(100)
        harness.session.throttle(False)
        assert harness.frames() == []

    def test_do_not_run_without_agreement(self, make_harness):
        options = StompOptions(heart_beat_send_minimum=0, heart_beat_receive_minimum=0)
        harness = make_harness(options)
        frame = harness.connect(heart_beat="1000,1000")
        assert frame.headers["heart-beat"] == "0,0"
        assert harness.loop.live_timers == []

    def test_the_grace_factor_is_an_option(self, make_harness):
        harness = make_harness(StompOptions(heart_beat_grace_factor=5.0))
        harness.connect(heart_beat="1000,0")
        harness.loop.advance(4.9)
        assert harness.frames() == []
        harness.loop.advance(0.3)
        harness.error()
