"""A session from the first byte to the last, every state by every kind of input."""

import asyncio
import logging
import random

import pytest
from large_fakes import FakeBodies, settled

from tidegate.spi import AccessError, ConnectionEndedError, Held, RequestError, StoreIOError
from tidegate_protocols.stomp import StompOptions, Version
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


WORK = {
    "SEND": "SEND\ndestination:/queue/a\n\n\0",
    "ACK": "ACK\nid:1-1\n\n\0",
    "ACK with receipt": "ACK\nid:1-1\nreceipt:r\n\n\0",
    "NACK": "NACK\nid:1-1\n\n\0",
    "SUBSCRIBE": "SUBSCRIBE\nid:2\ndestination:/queue/a\n\n\0",
    "UNSUBSCRIBE": "UNSUBSCRIBE\nid:1\n\n\0",
    "BEGIN": "BEGIN\ntransaction:t\n\n\0",
    "COMMIT": "COMMIT\ntransaction:t\n\n\0",
    "ABORT": "ABORT\ntransaction:t\n\n\0",
}
CONNECTS = {
    "CONNECT": "CONNECT\naccept-version:1.2\n\n\0",
    "STOMP": "STOMP\naccept-version:1.2\n\n\0",
}
DISCONNECT = {"DISCONNECT": "DISCONNECT\n\n\0"}


class TestEveryFrameInEveryState:
    @pytest.mark.parametrize("name", [*WORK, *DISCONNECT])
    def test_before_connect_is_an_error(self, harness, name):
        harness.feed((WORK | DISCONNECT)[name])
        assert harness.error().headers["message"].endswith("is not allowed before CONNECT")
        assert harness.session.state is State.CLOSED
        assert harness.broker.requests == []

    @pytest.mark.parametrize("name", [*WORK, *DISCONNECT, *CONNECTS])
    def test_while_connecting_waits(self, harness, name):
        harness.broker.gate.is_open = False
        harness.feed(CONNECTS["CONNECT"])
        harness.feed((WORK | DISCONNECT | CONNECTS)[name])
        assert harness.session.state is State.CONNECTING
        assert harness.frames() == []

    @pytest.mark.parametrize("name", WORK)
    def test_when_connected_works(self, harness, name):
        harness.connect()
        harness.subscribe()
        harness.feed(WORK[name])
        assert harness.session.state is State.CONNECTED
        assert harness.frames() == []
        assert len(harness.connection.take()) == 1

    @pytest.mark.parametrize("name", CONNECTS)
    def test_connect_when_connected_is_an_error(self, harness, name):
        harness.connect()
        harness.feed(CONNECTS[name])
        message = harness.error().headers["message"]
        assert message == f"{name} is not allowed on a connection that is connected already"
        assert len(harness.broker.requests) == 1

    @pytest.mark.parametrize("name", [*WORK, *DISCONNECT, *CONNECTS])
    @pytest.mark.parametrize("together", [True, False])
    def test_after_disconnect_is_an_error(self, harness, name, together):
        harness.connect()
        late = (WORK | DISCONNECT | CONNECTS)[name]
        if together:
            harness.feed("DISCONNECT\n\n\0" + late)
        else:
            harness.feed("DISCONNECT\n\n\0")
            harness.feed(late)
        assert harness.error().headers["message"].endswith("is not allowed after DISCONNECT")

    def test_what_waits_unsent_is_dropped_when_a_right_is_gone(self, harness):
        harness.connect()
        assert not harness.session.has_unsent
        harness.link.unsent_bytes = 1
        assert harness.session.has_unsent
        harness.session.closed(AccessError("subscribe is not allowed", destination="topic://t"))
        assert harness.link.is_aborted
        assert harness.frames() == []

    @pytest.mark.parametrize("name", [*WORK, *DISCONNECT, *CONNECTS])
    def test_on_a_closed_session_is_ignored(self, harness, name):
        harness.connect()
        harness.session.closed(ConnectionEndedError("x", "over"))
        harness.error()
        harness.feed((WORK | DISCONNECT | CONNECTS)[name])
        assert harness.frames() == []
        assert harness.connection.take() == []

    @pytest.mark.parametrize("state", list(State))
    def test_the_broker_may_call_in_any_state(self, harness, state):
        if state is not State.WAITING:
            harness.broker.gate.is_open = state is not State.CONNECTING
            harness.feed(CONNECTS["CONNECT"])
        if state is State.LEAVING:
            harness.feed(DISCONNECT["DISCONNECT"])
        if state is State.REFUSED:
            harness.connection.has_unconfirmed = True
            harness.session.refuse(RequestError("no"))
            harness.loop.turn()
        if state is State.CLOSED:
            harness.session.link_closed(None)
        assert harness.session.state is state
        harness.link.written.clear()
        harness.session.throttle(True)
        harness.session.throttle(False)
        assert harness.deliver("nobody", 1) == []
        harness.session.closed(ConnectionEndedError("take-over", "another client took over"))
        harness.session.closed(ConnectionEndedError("take-over", "again"))
        harness.loop.turn()
        assert harness.session.state is State.CLOSED
        if state is State.CLOSED:
            assert harness.frames() == []
        else:
            assert harness.error().headers["message"] == "another client took over"
            harness.session.link_closed(None)
        assert harness.ended == [harness.session]
        assert harness.loop.live_timers == []


class TestConfirmations:
    def test_leave_in_one_write(self, harness):
        harness.connect()
        harness.session.confirmed(["1", "a:b", "3"])
        assert len(harness.link.written) == 1
        assert [f.headers["receipt-id"] for f in harness.frames()] == ["1", "a:b", "3"]

    def test_leave_before_the_broker_goes_on_unless_messages_may_join_them(self, harness):
        harness.connect()
        harness.session.confirmed(["1"])
        assert harness.link.flushed == [1]
        harness.subscribe()
        harness.session.confirmed(["2"])
        assert harness.link.flushed == [1]

    def test_that_fail_are_errors_with_the_receipt(self, harness):
        harness.connect()
        harness.session.failed("7", StoreIOError("/dev/sda is gone"))
        harness.loop.turn()
        frame = harness.error()
        assert frame.headers["receipt-id"] == "7"
        assert frame.headers["message"] == StoreIOError.client_text
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_of_nobody_that_fail_are_errors_too(self, harness):
        harness.connect()
        harness.session.failed(None, StoreIOError("the disk is gone"))
        assert "receipt-id" not in harness.error().headers

    def test_that_fail_do_not_call_the_broker_back_at_once(self, harness):
        harness.connect()
        harness.session.failed("7", StoreIOError("the disk is gone"))
        assert harness.connection.take() == []

    def test_after_the_end_are_dropped(self, harness):
        harness.connect()
        harness.session.failed("7", StoreIOError("x"))
        harness.frames()
        harness.session.confirmed(["8"])
        harness.session.failed("9", StoreIOError("y"))
        assert harness.frames() == []


SENDS = "".join(f"SEND\ndestination:/queue/a\nreceipt:{n}\n\n\0" for n in range(3))
BAD = {
    "unknown command": "NONSENSE\n\n\0",
    "malformed": "SEND\nno colon\n\n\0",
    "wrong moment": "CONNECT\n\n\0",
    "no destination": "SEND\nreceipt:bad\n\nbody\0",
    "unknown subscription": "UNSUBSCRIBE\nid:9\nreceipt:bad\n\n\0",
    "unknown ack": "ACK\nid:9-1\n\n\0",
    "unknown transaction": "SEND\ndestination:/queue/a\ntransaction:t\nreceipt:bad\n\n\0",
    "DISCONNECT with a body": "DISCONNECT\nreceipt:bad\n\nx\0",
}


class TestRefusedBehindOthers:
    """The client hears what became of the frames before the bad one."""

    @pytest.fixture
    def refused(self, harness):
        """Three SENDs wait for the store; the frame behind them was refused. Its token, too."""
        harness.connect()
        self.feed(harness, BAD["unknown subscription"])
        harness.farewell = harness.connection.take()[-1][1]
        return harness

    @staticmethod
    def feed(harness, bad):
        harness.connection.has_unconfirmed = True
        if "transaction:t" in bad:
            harness.connection.fail["publish"] = lambda _m, _r, t: (
                RequestError("no such transaction") if t else None
            )
        harness.feed(SENDS + bad + "SEND\ndestination:/queue/behind\n\n\0DISCONNECT\n\n\0")

    @pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
    def test_error_waits_for_the_receipts(self, harness, bad):
        harness.connect()
        self.feed(harness, bad)
        calls = harness.connection.take()
        names = ["publish", "publish", "publish", "writable", "synchronize"]
        assert [call[0] for call in calls] == names
        assert calls[3] == ("writable", False)
        assert harness.session.state is State.REFUSED
        assert (harness.frames(), harness.link.is_closing) == ([], False)
        harness.session.confirmed(["0", "1"])
        assert [f.headers["receipt-id"] for f in harness.frames()] == ["0", "1"]
        harness.session.confirmed(["2", calls[4][1]])
        receipt, error = harness.frames()
        assert (receipt.command, receipt.headers["receipt-id"]) == ("RECEIPT", "2")
        assert error.command == "ERROR"
        assert error.headers.get("receipt-id") == ("bad" if "receipt:bad" in bad else None)
        assert harness.link.is_closing
        assert harness.connection.take() == []  # not from inside the broker's call
        harness.loop.turn()
        assert harness.connection.take() == [("disconnect", {"graceful": False})]
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]
        assert harness.loop.live_timers == []

    @pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
    def test_error_comes_at_once_when_nothing_waits(self, harness, bad):
        harness.connect()
        if "transaction:t" in bad:
            harness.connection.fail["publish"] = RequestError("no such transaction")
        harness.session.data_received(bad.encode())  # no turn of the loop
        assert harness.error()
        assert "synchronize" not in [call[0] for call in harness.connection.take()]

    async def test_meanwhile_what_comes_is_thrown_away(self, refused):
        refused.session.throttle(True, at_once=True)
        refused.session.throttle(False)
        refused.feed("SEND\ndestination:/queue/late\n\n\0NONSENSE\n\n\0")
        refused.feed("x" * 200_000)
        await settled()
        assert refused.link.is_reading  # or nobody would notice that it leaves
        assert refused.session._decoder.buffered_bytes == 0
        assert (refused.connection.take("holds"), refused.frames()) == ([], [])
        refused.session.confirmed(["0", "1", "2", refused.farewell])
        assert [f.command for f in refused.frames()] == ["RECEIPT"] * 3 + ["ERROR"]
        refused.loop.turn()
        assert refused.loop.live_timers == []

    def test_meanwhile_nothing_is_delivered(self, harness):
        harness.connect()
        harness.subscribe("1")
        self.feed(harness, BAD["unknown command"])
        harness.connection.take()
        assert harness.deliver("1", 5) == []
        harness.session.pause_writing()
        harness.session.resume_writing()
        assert ("writable", True) not in harness.connection.take()

    @pytest.mark.parametrize("told", ["1", None])
    def test_what_fails_before_it_is_the_error(self, refused, told):
        refused.session.failed(told, StoreIOError("the disk is gone"))
        error = refused.error()
        assert error.headers["message"] == StoreIOError.client_text
        assert error.headers.get("receipt-id") == told
        refused.session.failed("2", StoreIOError("the disk is gone"))
        refused.session.failed(refused.farewell, StoreIOError("the disk is gone"))
        assert refused.frames() == []
        refused.loop.turn()
        assert refused.connection.take() == [("disconnect", {"graceful": False})]

    def test_a_store_that_fails_behind_the_receipts_changes_nothing(self, refused):
        refused.session.confirmed(["0", "1", "2"])
        refused.session.failed(refused.farewell, StoreIOError("the disk is gone"))
        *receipts, error = refused.frames()
        assert [f.headers["receipt-id"] for f in receipts] == ["0", "1", "2"]
        assert "no subscription '9'" in error.headers["message"]
        assert refused.link.is_closing

    def test_a_lost_link_ends_it_at_once(self, refused):
        refused.session.link_closed(ConnectionResetError())
        assert refused.connection.take() == [("disconnect", {"graceful": False})]
        assert refused.ended == [refused.session]
        refused.session.confirmed(["0", refused.farewell])
        assert refused.frames() == []

    @pytest.mark.parametrize("how", ["closed", "end", "heart-beat"])
    def test_the_gateways_own_end_does_not_wait(self, refused, how):
        if how == "heart-beat":
            refused.session._heart_beat_expired(2.0)
        else:
            getattr(refused.session, how)(ConnectionEndedError("shutdown", "over"))
        assert refused.error().headers["message"].startswith(("over", "no heart-beat"))
        refused.session.confirmed(["0", "1", "2", refused.farewell])
        assert refused.frames() == []

    def test_heart_beats_go_on(self, harness):
        harness.connect(heart_beat="1000,1000")
        self.feed(harness, BAD["unknown command"])
        harness.link.written.clear()
        for _ in range(30):
            harness.loop.advance(1)
            harness.feed("\n")
        assert b"".join(harness.link.written).strip(b"\n") == b""
        assert len(harness.link.written) >= 20
        assert not harness.link.is_closing
        harness.link.written.clear()
        harness.loop.advance(30)
        assert "no heart-beat" in harness.error().headers["message"]

    async def test_a_large_body_on_its_way_to_the_client_ends_it_at_once(self, harness):
        harness.connect()
        harness.connection.has_unconfirmed = True
        harness.session._wire._large = Streaming()
        harness.feed(SENDS + BAD["unknown command"])
        assert "synchronize" not in [call[0] for call in harness.connection.take()]
        assert (harness.frames(), harness.link.is_closing) == ([], True)
        assert not harness.session._wire.is_streaming


class Streaming:
    """A large MESSAGE is on its way."""

    is_busy = True

    def send(self, data):
        raise AssertionError("nothing may be written in the middle of a body")

    def cancel(self):
        self.is_busy = False


class TestDisconnect:
    def test_with_receipt_is_answered_when_everything_is_durable(self, harness):
        harness.connect()
        harness.feed("SEND\ndestination:/queue/a\nreceipt:1\n\n\0DISCONNECT\nreceipt:bye\n\n\0")
        (_, (name, farewell)) = harness.connection.take()
        assert name == "synchronize"
        assert harness.session.state is State.LEAVING
        assert harness.frames() == []
        harness.session.confirmed(["1", farewell])
        assert harness.link.is_closing
        assert [f.headers["receipt-id"] for f in harness.frames()] == ["1", "bye"]
        assert harness.connection.take() == []  # not from inside the broker's call
        harness.loop.turn()
        assert harness.connection.take() == [("disconnect", {"graceful": True})]
        assert harness.connection.reason == ""
        harness.session.link_closed(None)
        assert harness.connection.take() == []

    def test_without_receipt_closes_when_everything_is_durable(self, harness):
        harness.connect()
        harness.feed("DISCONNECT\n\n\0")
        ((_, farewell),) = harness.connection.take()
        harness.session.confirmed([farewell])
        harness.loop.turn()
        assert harness.frames() == []
        assert harness.link.is_closing
        assert harness.connection.take() == [("disconnect", {"graceful": True})]

    def test_of_a_client_that_closes_at_once_is_graceful(self, harness):
        harness.connect()
        harness.feed("DISCONNECT\n\n\0")
        harness.connection.take()
        harness.session.link_closed(None)
        assert harness.connection.take() == [("disconnect", {"graceful": True})]

    def test_that_cannot_be_settled_is_an_error(self, harness):
        harness.connect()
        harness.feed("DISCONNECT\nreceipt:bye\n\n\0")
        ((_, farewell),) = harness.connection.take()
        harness.session.failed(farewell, StoreIOError("the disk is gone"))
        assert harness.error().headers["receipt-id"] == "bye"

    def test_by_closing_the_socket_is_not_graceful(self, harness):
        harness.connect()
        harness.session.link_closed(ConnectionResetError())
        assert harness.connection.take() == [("disconnect", {"graceful": False})]
        assert harness.ended == [harness.session]

    def test_with_a_body_is_refused(self, harness):
        harness.connect()
        harness.feed("DISCONNECT\n\nbody\0")
        assert "DISCONNECT must not have a body" in harness.error().body.decode()
        assert harness.connection.take() == [("disconnect", {"graceful": False})]
        assert harness.connection.reason == "DISCONNECT must not have a body"


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
            (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
            (b"garbage that goes on and on", "unknown command"),
        ],
    )
    def test_garbage_is_answered_and_closed(self, harness, data, text):
        harness.feed(data)
        assert text in harness.error().body.decode()
        harness.feed(data)
        assert harness.frames() == []

    def test_broker_errors_name_the_receipt(self, harness):
        harness.connect()
        harness.connection.fail["commit"] = RequestError("no transaction 't'")
        harness.feed("COMMIT\ntransaction:t\nreceipt:5\n\n\0SEND\ndestination:/queue/a\n\n\0")
        frame = harness.error()
        assert frame.headers["receipt-id"] == "5"
        assert b"no transaction 't'" in frame.body
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_a_broker_that_ends_us_in_the_middle_of_a_read_stops_it(self, harness):
        harness.connect()

        def end(*_):
            harness.session.closed(ConnectionEndedError("take-over", "another client took over"))

        harness.connection.fail["publish"] = end
        harness.feed("SEND\ndestination:/queue/a\n\n\0" * 3)
        assert harness.error().headers["message"] == "another client took over"
        assert len(harness.connection.take()) == 1

    def test_errors_are_escaped_by_version(self, harness):
        harness.connect("1.1")
        assert harness.version is Version.V1_1
        harness.session.closed(ConnectionEndedError("x", "a: b"))
        assert b"message:a\\c b\n" in b"".join(harness.link.written)

    def test_a_listener_may_end_the_session(self, harness):
        harness.connect()
        harness.session.end(ConnectionEndedError("shutdown", "the gateway is stopping"))
        harness.loop.turn()
        assert harness.error().headers["message"] == "the gateway is stopping"
        assert harness.connection.take() == [("disconnect", {"graceful": False})]

    def test_refusals_are_logged_without_bodies(self, harness, caplog):
        caplog.set_level(logging.INFO)
        harness.connect()
        harness.feed("SEND\n\ntop secret\0")
        assert "peer=10.0.0.9:5555" in caplog.text
        assert "destination" in caplog.text
        assert "top secret" not in caplog.text


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
        assert "nothing was heard for 101" in harness.error().headers["message"]
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


LARGE = 2000


def large_send(number, **headers):
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    head = f"SEND\ndestination:/queue/{number}\n{lines}content-length:{LARGE}\n\n"
    return head + "x" * LARGE + "\0"


def small_send(number):
    return f"SEND\ndestination:/queue/{number}\n\n\0"


class TestLargeSendsBeforeTheEnd:
    """What was received whole counts, however the connection ends, as with small messages."""

    @pytest.fixture
    async def ending(self, make_harness):
        """A connected session whose store syncs when it is told to, and which is to end."""
        bodies = FakeBodies()
        bodies.size_min = LARGE
        harness = make_harness(StompOptions(), loop=asyncio.get_running_loop(), large_bodies=bodies)
        harness.session.data_received(b"CONNECT\naccept-version:1.2\nheart-beat:1000,0\n\n\0")
        await settled()
        harness.frames()
        harness.connection.take()
        bodies.finish_door.clear()
        yield harness, bodies
        assert harness.session.state is State.CLOSED

    async def feed(self, harness, *texts):
        harness.session.data_received("".join(texts).encode())
        await settled()

    def published(self, harness):
        """Numbers of the published messages, and the names of the other calls."""
        return [
            int(call[1].destination.removeprefix("queue://")) if call[0] == "publish" else call[0]
            for call in harness.connection.take("check_publish", "writable")
        ]

    async def test_the_end_of_the_socket_waits_for_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2), large_send(3)[:-1])
        harness.session.link_closed(None)
        assert harness.connection.take("check_publish") == [("writable", False)]
        assert (harness.session.state, harness.ended) == (State.CONNECTED, [])
        assert harness.deliver("nobody", 1) == []
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, 2, "disconnect"]
        assert harness.ended == [harness.session]

    async def test_with_nothing_whole_it_does_not_wait(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1)[:-1])
        harness.session.link_closed(None)
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]
        assert bodies.writers[0].is_abandoned

    @pytest.mark.parametrize("cut", [0, 1])
    async def test_what_was_sent_behind_them_is_handled_too(self, ending, cut):
        harness, bodies = ending
        await self.feed(
            harness,
            large_send(1),
            "BEGIN\ntransaction:t\n\n\0",
            small_send(2),
            *[large_send(number) for number in range(3, 10)],
            "COMMIT\ntransaction:t\n\n\0",
            small_send(10)[: -cut or None],
        )
        assert self.published(harness) == []
        harness.session.link_closed(ConnectionResetError("gone"))
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [
            1,
            "begin",
            *range(2, 10),
            "commit",
            *([] if cut else [10]),
            "disconnect",
        ]
        assert harness.ended == [harness.session]

    async def test_a_disconnect_behind_them_is_graceful(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), "DISCONNECT\n\n\0")
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        calls = harness.connection.take("check_publish", "writable")
        assert [call[0] for call in calls] == ["publish", "synchronize", "disconnect"]
        assert calls[-1] == ("disconnect", {"graceful": True})

    async def test_a_bad_frame_behind_them_is_refused_in_its_turn(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), small_send(2), "NONSENSE\n\n\0", small_send(3))
        assert harness.frames() == []
        assert not harness.link.is_reading
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, 2, "disconnect"]
        assert "unknown command" in harness.error().headers["message"]
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    async def test_a_frame_behind_large_bodies_waits_for_them_too(self, ending):
        harness, bodies = ending
        harness.connection.has_unconfirmed = True
        harness.session.data_received(
            (large_send(1, receipt="1") + BAD["unknown command"] + SENDS).encode()
        )
        await settled()
        assert harness.session.state is State.CONNECTED
        bodies.finish_door.set()
        await settled()
        calls = harness.connection.take("check_publish", "holds")
        assert [call[0] for call in calls] == ["publish", "writable", "synchronize"]
        assert (harness.frames(), harness.link.is_reading) == ([], True)
        harness.session.confirmed(["1", calls[-1][1]])
        assert [f.command for f in harness.frames()] == ["RECEIPT", "ERROR"]
        await settled()
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    @pytest.mark.parametrize("lost", [False, True])
    async def test_a_bad_large_one_behind_them_is_refused_in_its_turn(self, ending, lost):
        harness, bodies = ending
        bad = large_send(2, receipt="r", transaction="unknown")
        await self.feed(harness, large_send(1), bad, small_send(3))
        if lost:
            harness.session.link_closed(None)
            harness.link.is_closing = True
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        if not lost:
            assert harness.error().headers["receipt-id"] == "r"
            harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    async def test_a_client_that_falls_silent_is_told_so_behind_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2)[:100])
        harness.session._heart_beat_expired(2.0)
        await settled()
        assert harness.frames() == []
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        assert "no heart-beat" in harness.error().headers["message"]
        assert bodies.writers[1].is_abandoned

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("how", ["closed", "end", "failed"])
    async def test_the_gateways_own_end_does_not_wait(self, ending, how, lost):
        harness, bodies = ending
        await self.feed(harness, large_send(1), small_send(2))
        if lost:
            harness.session.link_closed(None)
            harness.link.is_closing = True
        error = ConnectionEndedError("shutdown", "over")
        if how == "failed":
            harness.session.failed("r", error)
        else:
            getattr(harness.session, how)(error)
        await settled()
        if not lost:
            assert harness.error().headers["message"] == "over"
            harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == ([] if how == "closed" else ["disconnect"])
        assert harness.ended == [harness.session]
        assert bodies.writers[0].is_abandoned

    async def test_a_message_that_cannot_be_written_to_the_end_does_not_end_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1))
        harness.session._large_broke(StoreIOError("damaged"))
        assert harness.link.is_aborted
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        assert harness.ended == [harness.session]

    async def test_a_refused_one_ends_the_lost_connection(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2))
        harness.connection.fail["publish"] = RequestError("no")
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]

    @pytest.mark.parametrize("lost", [False, True])
    async def test_a_defect_ends_the_connection(self, ending, lost, caplog):
        harness, bodies = ending
        await self.feed(harness, large_send(1))
        harness.connection.fail["publish"] = ValueError("a defect")
        if lost:
            harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        if not lost:
            assert harness.link.is_aborted
            harness.session.link_closed(None)
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]
        assert "a defect" in caplog.text


def random_frames(chance):
    """Frames of a client, large and small, a few of them wrong, in a transaction and without."""
    makers = [
        lambda n: f"SEND\ndestination:/queue/{n}\nreceipt:{n}\n\nsmall\0",
        lambda n: large_send(n),
        lambda n: large_send(n, transaction="t", receipt=n),
        lambda n: (
            f"SEND\ndestination:/queue/{n}\n\n" + "y" * chance.choice([1990, LARGE, 5000]) + "\0"
        ),
        lambda n: f"SEND\ndestination:/queue/{n}\ntransaction:t\n\n\0",
        lambda n: "BEGIN\ntransaction:t\n\n\0",
        lambda n: f"COMMIT\ntransaction:t\nreceipt:{n}\n\n\0",
        lambda n: f"SUBSCRIBE\nid:{n}\ndestination:/queue/a\n\n\0",
    ]
    rare = [
        lambda n: "NONSENSE\n\n\0",
        lambda n: large_send(n)[:-1] + "x",
        lambda n: "SEND\n\nno destination\0",
        lambda n: f"DISCONNECT\nreceipt:{n}\n\n\0",
    ]
    count = chance.randrange(1, 9)
    return "".join(
        chance.choice(rare if chance.random() < 0.06 else makers)(number) for number in range(count)
    )


async def what_the_broker_is_told(make_harness, texts, bodies, chance):
    """The calls of a session that is sent *texts*, and then lost."""
    harness = make_harness(loop=asyncio.get_running_loop(), large_bodies=bodies)
    harness.session.data_received(b"CONNECT\naccept-version:1.2\n\n\0")
    await settled()
    harness.connection.take()
    transactions = set()

    def known(name):
        return RequestError("unknown") if name is not None and name not in transactions else None

    harness.connection.fail = {
        "publish": lambda message, receipt, transaction: known(transaction),
        "begin": transactions.add,
        "commit": lambda transaction, receipt: known(transaction) or transactions.discard("t"),
    }
    for text in texts:
        if bodies is not None:
            door = bodies.finish_door
            chance.choice([door.set, door.clear])()
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
        harness.session.data_received(text)
    harness.session.link_closed(None)
    if bodies is not None:
        bodies.finish_door.set()
    while not harness.ended:
        await settled()
    assert harness.session.state is State.CLOSED
    calls = harness.connection.take("check_publish", "writable", "synchronize")
    return [
        ("publish", call[1].destination, *call[2:]) if call[0] == "publish" else call
        for call in calls
    ]


@pytest.mark.parametrize("seed", range(150))
async def test_a_lost_client_sent_the_same_whether_bodies_are_streamed_or_not(make_harness, seed):
    async with asyncio.timeout(60):
        chance = random.Random(seed)
        data = random_frames(chance).encode()
        data = data[: chance.choice([len(data), chance.randrange(len(data) + 1)])]
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
        texts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        bodies = FakeBodies()
        bodies.size_min = LARGE
        plain = await what_the_broker_is_told(make_harness, texts, None, chance)
        assert await what_the_broker_is_told(make_harness, texts, bodies, chance) == plain


class TestEndOfInput:
    """The client sends no more, and reads on."""

    @pytest.fixture
    def waiting(self, harness):
        harness.connect()
        harness.connection.has_unconfirmed = True
        harness.feed(SENDS)
        harness.connection.take()
        return harness

    def test_it_hears_what_came_before(self, waiting):
        assert waiting.session.input_ended()
        *_, (name, farewell) = waiting.connection.take()
        assert (name, waiting.link.is_closing) == ("synchronize", False)
        waiting.session.confirmed(["0", "1", "2", farewell])
        assert [f.headers["receipt-id"] for f in waiting.frames()] == ["0", "1", "2"]
        assert waiting.link.is_closing
        waiting.loop.turn()
        assert waiting.connection.take() == [("disconnect", {"graceful": False})]
        waiting.session.link_closed(None)
        assert waiting.ended == [waiting.session]

    def test_it_is_gone_when_it_waits_for_nothing(self, harness):
        harness.connect()
        assert not harness.session.input_ended()
        assert harness.link.is_closing
        harness.loop.turn()
        assert harness.connection.take() == [("disconnect", {"graceful": False})]
        assert harness.ended == []
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    def test_before_connected_nothing_waits(self, harness):
        assert not harness.session.input_ended()
        harness.broker.gate.is_open = False
        harness.feed(CONNECTS["CONNECT"])
        assert not harness.session.input_ended()

    def test_behind_a_refused_frame_both_are_heard(self, waiting):
        waiting.feed(BAD["unknown command"])
        assert waiting.session.input_ended()
        *_, (_, farewell) = waiting.connection.take()
        waiting.session.confirmed(["0", "1", "2", farewell])
        assert [f.command for f in waiting.frames()] == ["RECEIPT"] * 3 + ["ERROR"]

    def test_behind_disconnect_its_receipt_is_heard(self, waiting):
        waiting.feed("DISCONNECT\nreceipt:bye\n\n\0")
        assert waiting.session.input_ended()
        *_, (_, farewell) = waiting.connection.take()
        waiting.session.confirmed(["0", "1", "2", farewell])
        assert [f.headers["receipt-id"] for f in waiting.frames()] == ["0", "1", "2", "bye"]
        waiting.loop.turn()
        assert waiting.connection.take() == [("disconnect", {"graceful": True})]

    def test_one_that_is_gone_then_is_not_waited_for(self, waiting):
        assert waiting.session.input_ended()
        waiting.session.link_closed(None)
        assert waiting.ended == [waiting.session]
        assert waiting.connection.take()[-1] == ("disconnect", {"graceful": False})
