"""ERROR frames."""

from typing import Any

import pytest

from tidegate.spi import PeerProtocolError, StoreIOError
from tidegate_protocols.stomp import SERVER_COMMANDS, Decoder, Frame, Version
from tidegate_protocols.stomp._errors import error_frame
from tidegate_protocols.stomp._handshake import NoCommonVersionError


def shown(error, frame=None, receipt=None) -> Any:
    decoder = Decoder(commands=SERVER_COMMANDS)
    decoder.version = Version.V1_2
    decoder.receive_data(error_frame(error, Version.V1_2, frame=frame, receipt=receipt))
    (made,) = decoder.events()
    return made


def test_the_body_has_the_reason_and_the_offending_frame():
    made = shown(PeerProtocolError("no"), Frame("SEND", {"a": "1"}, b"secret body"), "7")
    assert made.headers["message"] == "no"
    assert made.headers["receipt-id"] == "7"
    assert made.headers["content-type"] == "text/plain"
    assert made.body == b"no\n-----\nSEND\na:1\n(body of 11 bytes)\n-----\n"


def test_without_a_frame_there_is_only_the_reason():
    made = shown(PeerProtocolError("no"))
    assert made.body == b"no\n"
    assert "receipt-id" not in made.headers


def test_a_passcode_is_never_shown():
    made = shown(PeerProtocolError("no"), Frame("CONNECT", {"login": "me", "passcode": "hunter2"}))
    assert b"hunter2" not in made.body
    assert b"passcode:(not shown)" in made.body


@pytest.mark.parametrize("name", ["passcode", "Passcode", " passcode", "password", "PASSWORD "])
def test_however_a_client_writes_it(name):
    made = shown(PeerProtocolError("no"), Frame("CONNECT", {"login": "me", name: "hunter2"}))
    assert b"hunter2" not in made.body


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT\nlogin:me\npasscode hunter2\n\n\0",  # no colon
        b"CONNECT\nlogin:me\npasscode:hun\nhunter2\n\n\0",  # a line end in it
        b"STOMP\naccept-version:1.2\npasscode:hunter2\xff\n\n\0",  # not UTF-8
        b"CONNECT\n:hunter2\n\n\0",
        b"CONNECT\npasscode:hun\0hunter2\n\n\0",
        b"CONNECT passcode:hunter2\n\n\0",  # no line end before it
        b"CONNECTpasscode:hunter2\n\n\0",
    ],
)
def test_a_malformed_passcode_is_in_no_error(head):
    decoder = Decoder()
    decoder.receive_data(head)
    with pytest.raises(PeerProtocolError) as raised:
        decoder.next_event()
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(raised.value)


def test_the_store_s_error_names_no_path_to_a_client():
    made = shown(StoreIOError("journal: [Errno 5] /var/lib/tidegate/journal/data-1"))
    assert b"/var" not in made.body
    assert "/var" not in made.headers["message"]
    assert made.body.startswith(b"the message store is read-only")


def test_long_reasons_and_frames_are_cut():
    headers = {f"h{n}": "x" * 1000 for n in range(30)}
    made = shown(PeerProtocolError("e" * 1000 + "\nmore"), Frame("SEND", headers))
    assert made.headers["message"] == "e" * 200
    assert b"\nmore\n" in made.body
    assert b"h19:" + b"x" * 200 + b"\n(10 more)\n" in made.body


def test_repeated_headers_are_shown_as_they_came():
    made = shown(PeerProtocolError("no"), Frame("SEND", {"a": "1"}, b"", (("a", "1"), ("a", "2"))))
    assert b"a:1\na:2\n" in made.body


def test_the_versions_are_listed_when_none_is_common():
    assert shown(NoCommonVersionError("no")).headers["version"] == "1.0,1.1,1.2"
    assert "version" not in shown(PeerProtocolError("no")).headers
