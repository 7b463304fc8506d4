"""The request that opens a WebSocket: what is accepted, and what a refusal says."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import ConfigError
from tidegate_protocols.transport._upgrade import (
    Upgrade,
    WebSocketProfile,
    check_origins,
    http_refusal,
)

PROFILE = WebSocketProfile(("v12.stomp", "v11.stomp", "v10.stomp"), text_allowed=True)
GOOD = {
    "Host": "gw.example:61614",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",  # RFC 6455 section 1.3
    "Sec-WebSocket-Version": "13",
}


def request(start: str = "GET /stomp HTTP/1.1", **changes: str | None) -> bytes:
    headers = GOOD | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return f"{start}\r\n{''.join(lines)}\r\n".encode()


def upgrade(*origins: str, limit: int = 2048) -> Upgrade:
    return Upgrade(PROFILE, origins, limit)


def answer(data: bytes, *origins: str):
    got = upgrade(*origins).receive_data(data)
    assert got is not None
    return got


def test_a_good_request_is_switched_with_the_accept_key_of_the_specification():
    got = answer(request() + b"\x82\x80")
    assert got.response.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in got.response
    assert b"Sec-WebSocket-Protocol" not in got.response
    assert b"Sec-WebSocket-Extensions" not in got.response
    assert (got.refusal, got.subprotocol, got.rest) == ("", "", b"\x82\x80")


def test_a_request_may_come_cut_at_any_place():
    data = request(Sec_WebSocket_Protocol="v11.stomp")
    for i in range(1, len(data)):
        subject = upgrade()
        assert subject.receive_data(data[:i]) is None
        got = subject.receive_data(data[i:])
        assert got is not None
        assert got.subprotocol == "v11.stomp"


@pytest.mark.parametrize(
    ("offered", "agreed"),
    [
        ("v12.stomp", "v12.stomp"),
        ("v10.stomp, v11.stomp, v12.stomp", "v12.stomp"),
        ("v10.stomp,v11.stomp", "v11.stomp"),
        ("mqtt, v10.stomp", "v10.stomp"),
    ],
)
def test_the_highest_version_the_client_offers_is_agreed_upon(offered, agreed):
    got = answer(request(Sec_WebSocket_Protocol=offered))
    assert got.subprotocol == agreed
    assert f"\r\nSec-WebSocket-Protocol: {agreed}\r\n".encode() in got.response


def test_compression_is_not_agreed_upon():
    got = answer(request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
    assert got.response.startswith(b"HTTP/1.1 101 ")
    assert b"Sec-WebSocket-Extensions" not in got.response


@pytest.mark.parametrize(
    ("data", "status", "says"),
    [
        (request(Sec_WebSocket_Protocol="mqtt"), 400, b"this listener supports v12.stomp, v11"),
        (request(Sec_WebSocket_Protocol="V12.STOMP"), 400, b"no common subprotocol"),
        (request(Upgrade=None), 426, b"Upgrade"),
        (request(Upgrade="h2c"), 426, b"Upgrade"),
        (request(Connection="close"), 426, b"Connection"),
        (request(Sec_WebSocket_Key=None), 400, b"Sec-WebSocket-Key"),
        (request(Sec_WebSocket_Key="short"), 400, b"Sec-WebSocket-Key"),
        (request(Sec_WebSocket_Version="8"), 400, b"Sec-WebSocket-Version"),
        (request(Sec_WebSocket_Version=None), 400, b"Sec-WebSocket-Version"),
        (request(Host=None), 400, b"Host"),
        (request(Origin="https://evil.example"), 403, b"websocket_origins"),
        (request(Content_Length="3"), 400, b"body"),
        (request(Transfer_Encoding="chunked"), 400, b"valid HTTP"),
        (request("GET / HTTP/1.0"), 505, b"needs HTTP/1.1"),
        (request("GET /"), 400, b"valid HTTP"),
        (b"GET / HTTP/1.1\r\nno colon here\r\n\r\n", 400, b"valid HTTP"),
        (b"GET \xff\xfe\r\n\r\n", 400, b"valid HTTP"),
        (b"POST / HTTP/1.1\r\n", 400, b"expects an HTTP GET"),
        (b"CONNECT\naccept-version:1.2\n\n\0", 400, b"this is a WebSocket port"),
        (b"\x16\x03\x01", 400, b"this is a WebSocket port"),  # TLS
        (b"\n", 400, b"this is a WebSocket port"),
        (b"GET /" + b"x" * 2048, 431, b"longer than 2048 bytes"),
        (request(Cookie="x" * 2048), 431, b"longer than 2048 bytes"),
    ],
)
def test_a_refusal_is_http_that_says_why_and_closes(data, status, says):
    got = answer(data)
    assert got.response.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nConnection: close\r\n" in got.response
    assert says in got.response
    assert got.refusal
    assert got.subprotocol == ""


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "is_accepted"),
    [
        (None, "gw:1", (), True),  # no browser
        ("http://127.0.0.1:61614", "127.0.0.1:61614", (), True),  # its own page
        ("https://127.0.0.1", "127.0.0.1:443", (), True),
        ("http://LOCALHOST:80", "localhost", (), True),
        ("http://app.localhost:61614", "app.localhost:61614", (), True),
        ("http://[::1]:61614", "[::1]:61614", (), True),
        ("http://[::1]", "[::1]", (), True),
        # DNS rebinding: to the browser the page came from here, and its name means this address now.
        ("http://gw.example:61614", "gw.example:61614", (), False),
        ("https://gw.example", "gw.example:443", (), False),
        ("http://localhost.evil.example:61614", "localhost.evil.example:61614", (), False),
        ("http://evil-localhost:61614", "evil-localhost:61614", (), False),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", (), False),
        ("http://gw.example:61614", "gw.example:61614", ("http://gw.example:61614",), True),
        ("http://127.0.0.1:1", "127.0.0.1:2", (), False),
        ("https://gw.example", "gw.example:61614", (), False),  # another port is another site
        ("http://gw.example:443", "gw.example", (), False),
        ("null", "gw.example", (), False),
        ("file://", "", (), False),
        ("null", "gw.example", ("null",), True),
        ("https://app.example", "gw:1", ("https://app.example",), True),
        ("https://APP.example", "gw:1", ("https://App.example",), True),
        ("https://app.example:8443", "gw:1", ("https://app.example",), False),
        ("https://evil.example", "gw:1", ("https://app.example", "*"), True),
    ],
)
def test_pages_may_connect_from_the_same_host_or_a_listed_origin(
    origin, host, allowed, is_accepted
):
    got = answer(request(Origin=origin, Host=host), *allowed)
    assert (got.refusal == "") is is_accepted


def test_repeated_headers_that_must_be_single_are_refused():
    for name in ("Host", "Origin", "Sec-WebSocket-Key", "Sec-WebSocket-Version"):
        line = f"{name}: {GOOD.get(name, 'https://a.example')}\r\n".encode()
        data = request(Origin="http://127.0.0.1:1", Host="127.0.0.1:1").replace(
            b"\r\n\r\n", b"\r\n" + line + b"\r\n"
        )
        assert answer(data).response.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("origin", ["https://app.example/", "app.example", "https://", "", "://x"])
def test_an_origin_that_could_never_match_is_a_configuration_error(origin):
    check_origins(["*", "null", "https://app.example", "http://localhost:8080"])
    with pytest.raises(ConfigError, match="is not an origin") as raised:
        check_origins([origin])
    assert raised.value.key == "websocket_origins"


@given(
    st.one_of(
        st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"GET " + b + b"\r\n\r\n")
    )
)
def test_any_bytes_are_answered_or_waited_for(data):
    got = upgrade().receive_data(data)
    assert got is None or got.response.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505"))


def test_a_refusal_states_its_length():
    head, _, body = http_refusal(HTTPStatus.SERVICE_UNAVAILABLE, "full").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == b"full\n"


@pytest.mark.parametrize(
    "line",
    ["Authorization hunter2", "Authorization : Basic hunter2", "Authorization: hunter2\x00"],
)
def test_a_malformed_credential_is_in_no_answer_and_no_log(line: str):
    got = answer(request().replace(b"\r\n\r\n", f"\r\n{line}\r\n\r\n".encode()))
    assert got.response.startswith(b"HTTP/1.1 400 ")
    assert "not a valid HTTP request: invalid HTTP header" in got.refusal
    assert "hunter2" not in got.refusal + got.response.decode()
