"""DISCONNECT, errors, clients that send no more; and what is refused behind other frames."""

import logging

import pytest
from large_fakes import settled
from stomp_session import BAD, CONNECTS, SENDS

from tidegate.spi import ConnectionEndedError, RequestError, StoreIOError
from tidegate_protocols.stomp import Version
from tidegate_protocols.stomp._transitions import State


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
        assert refused.error().headers["message"].startswith(("over", "heart-beat missed"))
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
        assert "heart-beat missed" in harness.error().headers["message"]

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
        assert harness.refusal("SEND\ndestination:/queue/a\n\n\0" * 3) == "another client took over"
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
