"""A session from the first byte until it is connected."""

import pytest

from tidegate.spi import AccessError
from tidegate_protocols.stomp import StompOptions
from tidegate_protocols.stomp._transitions import State


class TestConnect:
    def test_is_answered_with_connected(self, harness):
        frame = harness.connect("1.2", heart_beat="0,0")
        assert frame.command == "CONNECTED"
        assert frame.headers["version"] == "1.2"
        assert frame.headers["server"] == "tidegate/9.9"
        assert frame.headers["heart-beat"] == "1000,1000"
        assert len(frame.headers["session"]) == 16
        assert harness.session.state is State.CONNECTED

    def test_tells_the_broker_who_it_is(self, make_harness):
        harness = make_harness(allow_anonymous=False)
        harness.connect("1.1", login="me", passcode="s", client_id="c")
        (request,) = harness.broker.requests
        assert (request.protocol, request.version) == ("stomp", "1.1")
        assert (request.username, request.password, request.client_id) == ("me", b"s", "c")
        assert (request.peer, request.listener) == ("10.0.0.9:5555", "stomp://127.0.0.1:61613")
        assert request.anonymous_allowed is False
        assert request.session_expiry == 0

    def test_resumes_after_the_answer(self, harness):
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        assert harness.connection.take() == [("resume",)]

    def test_of_a_client_that_is_already_slow_says_so(self, harness):
        harness.session.pause_writing()
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        assert harness.connection.take() == [("resume",), ("writable", False)]

    def test_who_leaves_before_the_answer_is_not_checked_any_more(self, harness):
        harness.broker.gate.is_open = False
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        assert harness.link.is_reading
        task = harness.loop.tasks[0]
        harness.session.link_closed(None)
        assert task.is_cancelled

    def test_no_more_is_read_before_the_answer_than_shows_who_is_there(self, harness):
        harness.broker.gate.is_open = False
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        assert harness.link.is_reading
        harness.feed("SEND\ndestination:/queue/a\n\n\0")
        assert not harness.link.is_reading
        harness.broker.gate.is_open = True
        harness.loop.tasks[0].step()
        assert [call[0] for call in harness.connection.take("resume")] == ["publish"]
        assert harness.link.is_reading

    def test_frames_sent_along_wait_for_the_answer(self, harness):
        harness.broker.gate.is_open = False
        harness.feed("STOMP\naccept-version:1.2\n\n\0SEND\ndestination:/queue/a\nx:\\c\n\n\0SEND\n")
        harness.feed("destination:/queue/b\n\n\0")
        assert harness.session.state is State.CONNECTING
        assert not harness.link.is_reading
        assert harness.frames() == []
        harness.broker.gate.is_open = True
        harness.loop.tasks[0].step()
        assert [f.command for f in harness.frames()] == ["CONNECTED"]
        assert harness.link.is_reading
        sent = [call[1] for call in harness.connection.take("resume")]
        assert [m.destination for m in sent] == ["queue://a", "queue://b"]
        assert sent[0].headers == (("x", ":"),)

    def test_refused_by_the_broker_is_an_error(self, harness):
        harness.broker.error = AccessError("wrong password", principal="me")
        harness.feed("CONNECT\naccept-version:1.2\npasscode:hunter2\n\n\0")
        frame = harness.error()
        assert frame.headers["message"] == "me: wrong password"
        assert b"hunter2" not in frame.body

    def test_without_a_common_version_lists_them(self, harness):
        harness.feed("CONNECT\naccept-version:3.0\n\n\0")
        frame = harness.error()
        assert frame.headers["version"] == "1.0,1.1,1.2"
        assert frame.body.startswith(b"Supported protocol versions are 1.0 1.1 1.2\n")

    def test_that_fails_inside_the_broker_is_logged_and_aborted(self, harness, caplog):
        harness.broker.error = ValueError("bug")
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        assert harness.link.is_aborted
        assert "connect failed" in caplog.text
        assert "ValueError" in caplog.text

    def test_answered_after_the_client_left_is_undone(self, harness):
        harness.broker.gate.is_open = False
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        harness.session.state = State.CLOSED  # closed in the very turn of the answer
        harness.broker.gate.is_open = True
        harness.loop.tasks[0].step()
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_is_cancelled_when_the_client_leaves(self, harness):
        harness.broker.gate.is_open = False
        harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        harness.session.link_closed(None)
        assert harness.loop.tasks[0].is_cancelled
        assert harness.loop.live_timers == []
        assert harness.ended == [harness.session]

    @pytest.mark.parametrize("begun", [False, True])
    def test_that_never_comes_ends_the_connection(self, make_harness, begun):
        harness = make_harness(StompOptions(connect_timeout=3))
        if begun:
            harness.broker.gate.is_open = False
            harness.feed("CONNECT\naccept-version:1.2\n\n\0")
        harness.loop.advance(2.9)
        assert harness.frames() == []
        harness.loop.advance(0.2)
        assert "within 3s" in harness.error().headers["message"]
        assert all(task.is_cancelled for task in harness.loop.tasks)

    def test_in_time_stops_the_clock(self, harness):
        harness.connect()
        assert harness.loop.live_timers == []
