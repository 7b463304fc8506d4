"""What the specifications ask of connecting, heart-beats and DISCONNECT.

The marks are the clauses of clauses.toml; docs/stomp.md has the table of both.
"""

import pytest
from stomp_conformance import ALL, SINCE_1_1, sent, wire

from tidegate.spi import AccessError
from tidegate_protocols.stomp import StompOptions

# ------------------------------------------------------------------------------------ Connecting


@pytest.mark.clause(
    "stomp-1.0,1.1,1.2/connecting/answer",
    "stomp-1.1,1.2/connected/version",
    "stomp-1.1,1.2/connect/command",
    "stomp-1.1,1.2/connect/host",
)
@ALL
def test_connect_is_answered_with_connected(harness, version):
    frame = harness.connect(version)
    assert frame.command == "CONNECTED"
    assert frame.headers["version"] == version
    assert not harness.link.is_closing


@pytest.mark.clause("stomp-1.1,1.2/connecting/reject")
@SINCE_1_1
def test_a_rejected_connect_is_told_why_and_closed(harness, version):
    harness.broker.error = AccessError("wrong password", principal="me")
    assert "wrong password" in harness.refusal(f"CONNECT\naccept-version:{version}\n\n\0")


@pytest.mark.clause("stomp-1.1,1.2/connect/stomp")
@SINCE_1_1
def test_stomp_is_handled_as_connect(harness, version):
    requests = []
    harness.feed(f"STOMP\naccept-version:{version}\nlogin:me\nheart-beat:5,6\n\n\0")
    requests += harness.broker.requests
    (frame,) = harness.frames()
    assert (frame.command, frame.headers["version"]) == ("CONNECTED", version)
    assert (requests[0].username, requests[0].version) == ("me", version)


@pytest.mark.clause("stomp-1.1,1.2/connect/accept-version", "stomp-1.1,1.2/negotiation/header")
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_without_accept_version_only_1_0_is_meant(harness, command):
    harness.feed(f"{command}\nlogin:me\nheart-beat:5,5\n\n\0")
    (frame,) = harness.frames()
    assert frame.headers["version"] == "1.0"
    assert "heart-beat" not in frame.headers
    assert harness.loop.live_timers == []


@pytest.mark.clause("stomp-1.1,1.2/connect/virtual-host")
@SINCE_1_1
def test_any_host_gets_the_one_virtual_host(harness, version):
    assert harness.connect(version, host="nobody.example").command == "CONNECTED"


@pytest.mark.clause("stomp-1.0,1.1,1.2/connect/login")
@ALL
def test_login_and_passcode_reach_the_broker(harness, version):
    harness.connect(version, login="me", passcode="s:cret")
    (request,) = harness.broker.requests
    assert (request.username, request.password) == ("me", b"s:cret")


@pytest.mark.clause("stomp-1.0/connect/login")
def test_padding_of_the_1_0_example_is_no_part_of_the_login(harness):
    harness.feed("CONNECT\nlogin: me\npasscode:x\n\n\0")
    (request,) = harness.broker.requests
    assert request.username == "me"


@pytest.mark.clause("stomp-1.2/connect/heart-beat", "stomp-1.2/connected/heart-beat")
def test_both_sides_say_their_heart_beats(harness):
    assert harness.connect("1.2", heart_beat="0,7000").headers["heart-beat"] == "1000,1000"
    harness.loop.advance(7)
    assert b"\n" in harness.link.written


@pytest.mark.clause("stomp-1.0,1.1,1.2/connected/session")
@ALL
def test_sessions_are_told_apart(make_harness, version):
    frames = [make_harness().connect(version) for _ in range(3)]
    assert len({frame.headers["session"] for frame in frames}) == 3


@pytest.mark.clause("stomp-1.1,1.2/connected/server", "stomp-1.1,1.2/connected/server-name")
@SINCE_1_1
def test_server_is_a_name_and_a_version(harness, version):
    assert harness.connect(version).headers["server"] == "tidegate/9.9"


@pytest.mark.clause("stomp-1.1,1.2/negotiation/list", "stomp-1.1,1.2/negotiation/highest")
@pytest.mark.parametrize(
    ("accepted", "version"),
    [("1.0,1.1,2.0", "1.1"), ("1.0,1.1,1.2", "1.2"), ("1.2,1.0", "1.2"), ("1.1", "1.1")],
)
def test_the_highest_common_version_is_used(harness, accepted, version):
    harness.feed(f"CONNECT\naccept-version:{accepted}\n\n\0")
    (frame,) = harness.frames()
    assert frame.headers["version"] == version


@pytest.mark.clause("stomp-1.1,1.2/negotiation/none")
def test_without_a_common_version_the_server_lists_its_own(harness):
    harness.feed("CONNECT\naccept-version:2.1,3.0\n\n\0")
    frame = harness.error()
    assert frame.headers["version"] == "1.0,1.1,1.2"
    assert frame.headers["content-type"] == "text/plain"
    assert frame.body.startswith(b"Supported protocol versions are 1.0 1.1 1.2")


# -------------------------------------------------------------------------------- Once Connected


@pytest.mark.clause("stomp-1.1,1.2/connected/other-frames")
@SINCE_1_1
@pytest.mark.parametrize("command", ["HELLO", "MESSAGE", "CONNECTED"])
def test_other_frames_are_errors(connected, command):
    assert f"unknown command '{command}'" in connected.refusal(f"{command}\n\n\0")


# ------------------------------------------------------------------------------------ DISCONNECT


@pytest.mark.clause("stomp-1.0/disconnect/polite", "stomp-1.1,1.2/disconnect/graceful")
@ALL
def test_the_receipt_of_disconnect_comes_when_everything_is_done(connected):
    connected.feed("SEND\ndestination:/queue/a\nreceipt:1\n\n\0DISCONNECT\nreceipt:77\n\n\0")
    (_, (name, farewell)) = connected.connection.take()
    assert (name, connected.frames(), connected.link.is_closing) == ("synchronize", [], False)
    connected.session.confirmed(["1", farewell])
    assert [f.headers["receipt-id"] for f in connected.frames()] == ["1", "77"]
    assert connected.link.is_closing
    connected.loop.turn()
    assert connected.connection.take() == [("disconnect", {"graceful": True})]


@pytest.mark.clause("stomp-1.1,1.2/disconnect/last")
@SINCE_1_1
def test_a_frame_after_disconnect_is_refused(connected):
    assert (
        connected.refusal("DISCONNECT\n\n\0SEND\ndestination:/queue/a\n\n\0")
        == "SEND is not allowed after DISCONNECT"
    )
    assert sent(connected) == []


# --------------------------------------------------------------------------------- Heart-beating


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/header")
@SINCE_1_1
@pytest.mark.parametrize("value", ["", "1", "1,2,3", "a,b", "-1,0", "1.5,0", "1;2"])
def test_a_malformed_heart_beat_header_is_refused(harness, version, value):
    assert "heart-beat" in harness.refusal(
        f"CONNECT\naccept-version:{version}\nheart-beat:{value}\n\n\0"
    )


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/missing", "stomp-1.1,1.2/heart-beat/interval")
@SINCE_1_1
@pytest.mark.parametrize("headers", [{}, {"heart_beat": "0,0"}])
def test_without_heart_beats_nothing_is_sent_and_nobody_is_lost(harness, version, headers):
    harness.connect(version, **headers)
    harness.loop.advance(1000)
    assert harness.link.written == []
    assert not harness.link.is_closing


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/interval")
@SINCE_1_1
@pytest.mark.parametrize(("wish", "interval"), [(5000, 5), (300, 1)])
def test_the_larger_interval_counts(make_harness, version, wish, interval):
    harness = make_harness(StompOptions(heart_beat_send_minimum=1.0))
    harness.connect(version, heart_beat=f"0,{wish}")
    harness.loop.advance(interval * 20)
    assert 20 <= len(harness.link.written) <= 60


@pytest.mark.clause("stomp-1.1,1.2/heart-beat/send", "stomp-1.1,1.2/heart-beat/line-end")
@SINCE_1_1
def test_one_line_end_goes_out_in_every_interval(harness, version):
    harness.connect(version, heart_beat="0,4000")
    for _ in range(10):
        harness.loop.advance(4)
        assert wire(harness).strip(b"\n") == b""
        harness.loop.advance(0.5)
    harness.link.written.clear()
    for _ in range(10):
        harness.loop.advance(4)
        written, harness.link.written[:] = list(harness.link.written), []
        assert written
        assert set(written) == {b"\n"}


@pytest.mark.clause(
    "stomp-1.1,1.2/heart-beat/any-data",
    "stomp-1.1,1.2/heart-beat/dead",
    "stomp-1.1,1.2/heart-beat/tolerant",
)
@SINCE_1_1
def test_a_silent_client_is_lost_only_after_twice_the_interval(harness, version):
    harness.connect(version, heart_beat="5000,0")
    for byte in "\nSEND\nx":
        harness.loop.advance(9)  # late, but within the margin
        harness.feed(byte)
    assert not harness.link.is_closing
    harness.loop.advance(11)
    assert "heart-beat" in harness.error().headers["message"]
