"""Every state by every kind of input, and confirmations that wait for the disk."""

import pytest
from stomp_session import CONNECTS

from tidegate.spi import AccessError, ConnectionEndedError, RequestError, StoreIOError
from tidegate_protocols.stomp._transitions import State

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
        assert message == f"{name} is not allowed on a connection that is already connected"
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
