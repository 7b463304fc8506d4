"""CONNECT frames."""

import pytest

from tidegate.spi import PeerProtocolError
from tidegate_protocols.stomp._handshake import NoCommonVersionError, read_handshake
from tidegate_protocols.stomp.codec.frames import Frame, Version


def connect(body=b"", **headers):
    return read_handshake(
        Frame("CONNECT", {k.replace("_", "-"): v for k, v in headers.items()}, body)
    )


@pytest.mark.parametrize(
    ("accepted", "version"),
    [
        ("1.2", Version.V1_2),
        ("1.0,1.1,2.0", Version.V1_1),
        ("1.2,1.1,1.0", Version.V1_2),
        ("1.0", Version.V1_0),
        ("1.0, 1.1", Version.V1_1),
    ],
)
def test_the_highest_common_version_is_used(accepted, version):
    assert connect(accept_version=accepted).version is version


def test_no_accept_version_means_1_0_without_heart_beats():
    handshake = connect(heart_beat="1,1")
    assert handshake.version is Version.V1_0
    assert handshake.heart_beat == (0, 0)


@pytest.mark.parametrize(
    ("bound", "headers", "is_accepted"),
    [
        (Version.V1_2, {"accept-version": "1.0,1.1,1.2"}, True),
        (Version.V1_1, {"accept-version": "1.0,1.1,1.2"}, True),  # not the highest: the bound one
        (Version.V1_0, {"accept-version": "1.0,1.1,1.2"}, True),
        (Version.V1_0, {}, True),  # no accept-version is 1.0
        (Version.V1_2, {}, False),
        (Version.V1_1, {"accept-version": "1.2"}, False),
    ],
)
def test_a_websocket_subprotocol_binds_the_version(bound, headers, is_accepted):
    frame = Frame("CONNECT", headers, b"")
    if is_accepted:
        assert read_handshake(frame, bound=bound).version is bound
        return
    with pytest.raises(NoCommonVersionError, match=f"requires STOMP {bound.value}"):
        read_handshake(frame, bound=bound)


@pytest.mark.parametrize("accepted", ["2.0", "", "1.3,1.4", "12"])
def test_no_common_version_is_refused_with_what_there_is(accepted):
    with pytest.raises(
        NoCommonVersionError, match=r"^Supported protocol versions are 1\.0 1\.1 1\.2$"
    ):
        connect(accept_version=accepted)


def test_who_it_is():
    handshake = connect(accept_version="1.2", login="me", passcode="sécret", client_id="c1")
    assert (handshake.username, handshake.password, handshake.client_id) == (
        "me",
        "sécret".encode(),
        "c1",
    )
    nobody = connect(accept_version="1.2")
    assert (nobody.username, nobody.password, nobody.client_id) == ("", None, "")
    assert connect(accept_version="1.2", login="me", passcode="").password == b""


def test_heart_beats_are_read():
    assert connect(accept_version="1.2", heart_beat="5,6").heart_beat == (5, 6)
    assert connect(accept_version="1.1").heart_beat == (0, 0)
    with pytest.raises(PeerProtocolError, match="heart-beat"):
        connect(accept_version="1.2", heart_beat="5")


def test_a_body_is_refused():
    with pytest.raises(PeerProtocolError, match="body"):
        connect(b"x", accept_version="1.2")
