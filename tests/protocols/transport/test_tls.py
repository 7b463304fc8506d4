"""TLS: every wrong file has its own error, and real handshakes do what the options say."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from link_recorder import Recorder, TwoSockets, hang_up

from tidegate.spi import ConfigError, parse_options
from tidegate_protocols.transport import TcpListener, TransportOptions
from tidegate_protocols.transport import _tcp as tcp
from tidegate_protocols.transport._tls import server_context, subject_of


def options(files: Path, **changes: object) -> TransportOptions:
    table: dict[str, object] = {"tls_certificate": "server.pem", "tls_key": "server.key"} | changes
    for key in ("tls_certificate", "tls_key", "tls_key_password_file", "tls_ca"):
        if table.get(key) is not None:
            table[key] = str(files / str(table[key]))
    return parse_options(TransportOptions, {k: v for k, v in table.items() if v is not None})


# what is set, the key that is blamed, what the message says ({} is the directory)
WRONG = [
    ({"tls_certificate": None}, "tls_certificate", "is required for TLS"),
    ({"tls_certificate": "no.pem"}, "tls_certificate", "{}/no.pem: cannot be read: No such file"),
    ({"tls_certificate": "."}, "tls_certificate", "cannot be read: Is a directory"),
    ({"tls_certificate": "server.key"}, "tls_certificate", "server.key: contains no certificate"),
    (
        {"tls_certificate": "damaged.pem"},
        "tls_certificate",
        "damaged.pem: a certificate is damaged",
    ),
    ({"tls_key": None}, "tls_certificate", "server.pem: contains no private key in PEM form; set"),
    ({"tls_key": "no.key"}, "tls_key", "{}/no.key: cannot be read: No such file"),
    ({"tls_key": "server.pem"}, "tls_key", "server.pem: contains no private key"),
    ({"tls_key": "damaged.key"}, "tls_key", "damaged.key: cannot be used with"),
    ({"tls_key": "client.key"}, "tls_key", "client.key: the private key does not belong to"),
    ({"tls_key": "locked.key"}, "tls_key", "is encrypted; set tls_key_password_file"),
    (
        {"tls_key": "locked.key", "tls_key_password_file": "wrong-password"},
        "tls_key_password_file",
        "wrong-password: is not the password of",
    ),
    ({"tls_key_password_file": "no"}, "tls_key_password_file", "{}/no: cannot be read"),
    ({"tls_key_password_file": "empty"}, "tls_key_password_file", "the first line is empty"),
    ({"tls_key_password_file": "password"}, "tls_key_password_file", "is not encrypted"),
    (
        {"tls_key": "locked.key", "tls_key_password_file": "long-password"},
        "tls_key_password_file",
        "long-password: ",
    ),
    ({"tls_ca": "ca.pem"}, "tls_ca", "has no effect because tls_client_certificate is 'none'"),
    ({"tls_client_certificate": "required"}, "tls_ca", "is required with"),
    ({"tls_client_certificate": "optional", "tls_ca": "no"}, "tls_ca", "{}/no: cannot be read"),
    (
        {"tls_client_certificate": "optional", "tls_ca": "server.key"},
        "tls_ca",
        "server.key: contains no certificate",
    ),
    ({"tls_ciphers": "NONSENSE"}, "tls_ciphers", "selects no cipher suite"),
    ({"tls_ciphers": "HIGH", "tls_version_min": "1.3"}, "tls_ciphers", "has no effect"),
]


@pytest.mark.parametrize(("changes", "key", "says"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_named_with_its_problem(locked, changes, key, says):
    with pytest.raises(ConfigError) as raised:
        server_context(options(locked, **changes))
    assert raised.value.key == key
    assert says.format(locked) in str(raised.value)


def test_no_certificate_at_all_is_an_error_too():
    with pytest.raises(ConfigError, match="tls_certificate: is required for TLS, but missing"):
        server_context(TransportOptions())


def test_a_file_that_may_not_be_read_is_named(locked, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    chosen = options(locked)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"server\.pem: cannot be read: Permission denied"):
        server_context(chosen)


def test_what_is_right_is_taken(locked):
    context = server_context(options(locked, tls_certificate="both.pem", tls_key=None))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_NONE
    server_context(options(locked, tls_key="locked.key", tls_key_password_file="password"))
    context = server_context(options(locked, tls_version_min="1.3"))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    context = server_context(options(locked, tls_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384"))
    names = {cipher["name"] for cipher in context.get_ciphers()}
    assert {name for name in names if not name.startswith("TLS_")} == {
        "ECDHE-ECDSA-AES256-GCM-SHA384"
    }


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ((), ""),
        (((("commonName", "anna"),),), "CN=anna"),
        (
            ((("countryName", "CZ"),), (("organizationName", "Pier, s.r.o."),), (("commonName", "anna"),)),
            "CN=anna,O=Pier\\, s.r.o.,C=CZ",
        ),
        (((("commonName", "a"), ("userId", "7")),), "CN=a+UID=7"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
        (((("commonName", '#"+;<>\\'),),), 'CN=\\#\\"\\+\\;\\<\\>\\\\'),
        (((("commonName", " x "),),), "CN=\\ x\\ "),
        (((("commonName", "a\0b"),),), "CN=a\\00b"),
    ],
)  # fmt: skip
def test_a_subject_is_written_as_rfc_4514_says(subject, text):
    assert subject_of({"subject": subject}) == text


def test_no_certificate_has_no_subject():
    assert subject_of(None) == subject_of({}) == ""


# --------------------------------------------------------------------------------- real sockets


@contextlib.asynccontextmanager
async def listening(
    chosen: TransportOptions,
    make: Callable[[], Recorder] = Recorder,
    sockets: TwoSockets | None = None,
    connections_max: int = 10,
):
    handlers: list[Recorder] = []

    def make_handler():
        handlers.append(make())
        return handlers[-1]

    listener = TcpListener(
        "127.0.0.1",
        0,
        make_handler,
        connections_max=connections_max,
        refusal=b"full\n",
        tls=server_context(chosen),
        tls_handshake_timeout_s=chosen.handshake_timeout,
        sockets=sockets,
    )
    _, port = await listener.start()
    try:
        yield listener, handlers, port
    finally:
        await listener.stop(5.0)


def client_context(authority: trustme.CA, files: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    if files is not None:
        context.load_cert_chain(files / "client.pem", files / "client.key")
    return context


async def connect(port, context):
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def is_refused(port, context) -> bool:
    """Whether the gateway ends the connection before it is usable."""
    try:
        reader, writer = await connect(port, context)
        writer.write(b"x")
        answer = await reader.read(1)
        await hang_up(writer)
    except (ssl.SSLError, OSError):
        return True
    return answer == b""


async def test_bytes_go_both_ways_encrypted(files, authority):
    echo = lambda: Recorder(lambda data: data.upper())  # noqa: E731
    async with listening(options(files), echo) as (_, handlers, port):
        reader, writer = await connect(port, client_context(authority))
        body = b"hello" * 100_000
        writer.write(body)
        assert await reader.readexactly(len(body)) == body.upper()
        link = handlers[0].link
        assert link.peer == "{}:{}".format(*writer.get_extra_info("sockname"))
        assert (link.tls_subject, link.subprotocol) == ("", "")
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        await hang_up(writer)
        await handlers[0].until(lambda h: isinstance(h.events[-1], tuple))


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_client_certificate_gives_its_subject(files, authority, mode):
    chosen = options(files, tls_client_certificate=mode, tls_ca="ca.pem")
    async with listening(chosen) as (_, handlers, port):
        _, writer = await connect(port, client_context(authority, files))
        writer.write(b"x")
        while not handlers:
            await asyncio.sleep(0)
        await handlers[0].until(lambda h: h.data == b"x")
        subject = handlers[0].link.tls_subject
        assert subject.startswith("CN=anna,")
        assert subject.endswith(",O=Pier")
        await hang_up(writer)


async def test_without_a_certificate_optional_lets_in_and_required_does_not(files, authority):
    async def scenario(mode):
        chosen = options(files, tls_client_certificate=mode, tls_ca="ca.pem")
        async with listening(chosen, lambda: Recorder(lambda data: data)) as (_, handlers, port):
            refused = await is_refused(port, client_context(authority))
            assert [h.link.tls_subject for h in handlers] == ([] if refused else [""])
            return refused

    assert await scenario("optional") is False
    assert await scenario("required") is True


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_a_certificate_of_another_authority_is_refused(files, authority, mode, tmp_path):
    stranger = trustme.CA().issue_cert("mallory@example.org")
    stranger.private_key_and_cert_chain_pem.write_to_path(tmp_path / "mallory.pem")

    chosen = options(files, tls_client_certificate=mode, tls_ca="ca.pem")
    async with listening(chosen) as (listener, handlers, port):
        context = client_context(authority)
        context.load_cert_chain(tmp_path / "mallory.pem")
        assert await is_refused(port, context)
        assert handlers == []
        while listener.connection_count:
            await asyncio.sleep(0.01)


async def test_a_version_below_the_minimum_is_refused(files, authority):
    async def scenario(minimum):
        old = client_context(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        chosen = options(files, tls_version_min=minimum)
        async with listening(chosen, lambda: Recorder(lambda data: data)) as (_, _, port):
            return await is_refused(port, old)

    assert await scenario("1.2") is False
    assert await scenario("1.3") is True


async def test_plain_bytes_never_reach_a_handler_and_silence_ends(files):
    chosen, sockets = options(files, handshake_timeout="50ms"), TwoSockets()
    async with listening(chosen, sockets=sockets) as (listener, handlers, port):
        for first in (b"CONNECT\naccept-version:1.2\n\n\0", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            await hang_up(writer)
        assert handlers == []
        while listener.connection_count or sockets.count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"\x10\x10\0\x04MQTT\x05\x02\0<\0\0\x04abcd", "the client does not speak TLS"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "the client does not speak TLS"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the client speaks HTTP without TLS"),
        (b"", "not complete within handshake_timeout"),
    ],
)
async def test_the_log_says_why_there_is_no_handshake(files, first, says, caplog):
    async with listening(options(files, handshake_timeout="50ms")) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        peer = "{}:{}".format(*writer.get_extra_info("sockname"))
        writer.write(first)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await hang_up(writer)
        while "tls refused" not in caplog.text:
            await asyncio.sleep(0.01)
        assert f"tls refused port={port} peer={peer} reason={says!r}"[:-1] in caplog.text


async def test_the_log_says_whose_certificate_is_not_accepted(files, authority, tmp_path, caplog):
    mallory = trustme.CA().issue_cert("mallory@example.org")
    mallory.private_key_and_cert_chain_pem.write_to_path(tmp_path / "mallory.pem")
    unknown = client_context(authority)
    unknown.load_cert_chain(tmp_path / "mallory.pem")
    chosen = options(files, tls_client_certificate="required", tls_ca="ca.pem")
    for context, says in (
        (unknown, "the client's certificate was rejected: "),
        (client_context(authority), "the client sent no certificate"),
    ):
        caplog.clear()
        async with listening(chosen) as (listener, _, port):
            assert await is_refused(port, context)
            while listener.connection_count:
                await asyncio.sleep(0.01)
        assert says in caplog.text


async def test_the_log_says_that_the_peer_does_not_trust_us(files, caplog):
    def wrap(port: int) -> None:  # asyncio's own client goes without an alert
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            client_context(trustme.CA()).wrap_socket(plain, server_hostname="127.0.0.1")

    async with listening(options(files)) as (listener, _, port):
        await asyncio.to_thread(wrap, port)
        while listener.connection_count:
            await asyncio.sleep(0.01)
    assert "the client does not trust the authority that signed tls_certificate" in caplog.text


async def test_a_peer_that_only_looks_whether_the_port_is_open_is_not_in_the_log(files, caplog):
    sockets = TwoSockets()
    async with listening(options(files), sockets=sockets) as (listener, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not listener.connection_count:
            await asyncio.sleep(0)
        await hang_up(writer)
        while listener.connection_count:
            await asyncio.sleep(0.01)
    assert "tls refused" not in caplog.text


async def test_the_limit_of_a_listener_counts_from_accept_on(files, authority, caplog):
    async with listening(options(files), connections_max=2) as (listener, handlers, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while listener.connection_count < 2:
            await asyncio.sleep(0)
        assert await is_refused(port, client_context(authority))  # at once, without a handshake
        assert "connections refused connections_max=2" in caplog.text
        assert (listener.connection_count, handlers) == (2, [])
        for _, writer in silent:
            await hang_up(writer)
        while listener.connection_count:
            await asyncio.sleep(0.01)
        _, writer = await connect(port, client_context(authority))
        assert listener.connection_count == 1
        await hang_up(writer)


async def test_a_socket_counts_from_accept_on_and_no_more_when_its_handshake_fails(
    files, authority
):
    sockets = TwoSockets()
    async with listening(options(files), sockets=sockets) as (listener, handlers, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while sockets.count < 2:
            await asyncio.sleep(0)
        assert await is_refused(port, client_context(authority))
        assert handlers == []
        for _, writer in silent:
            await hang_up(writer)
        while sockets.count:
            await asyncio.sleep(0.01)
        _, left = await asyncio.open_connection("127.0.0.1", port)
        while not sockets.count:
            await asyncio.sleep(0)
        await hang_up(left)  # in the middle of its handshake
        while sockets.count:
            await asyncio.sleep(0.01)
        _, writer = await connect(port, client_context(authority))
        while not handlers or handlers[0].link is None:
            await asyncio.sleep(0)
        assert (sockets.count, listener.connection_count) == (1, 1)
        await hang_up(writer)
        await handlers[0].until(lambda h: isinstance(h.events[-1], tuple))
        _, left = await asyncio.open_connection("127.0.0.1", port)
        while not sockets.count:
            await asyncio.sleep(0)
    assert sockets.count == 0
    await hang_up(left)


async def test_what_comes_right_behind_the_handshake_is_not_lost(files, authority):
    async with listening(options(files)) as (_, handlers, port):
        for number in range(5):
            _, writer = await connect(port, client_context(authority))
            writer.write(b"at once")
            await hang_up(writer)
            while len(handlers) <= number or handlers[number].data != b"at once":
                await asyncio.sleep(0)


async def test_close_delivers_the_last_bytes_though_input_is_unread(files, authority):
    async with listening(options(files)) as (_, handlers, port):
        reader, writer = await connect(port, client_context(authority))
        while not handlers or handlers[0].link is None:
            await asyncio.sleep(0)
        handler = handlers[0]
        handler.link.pause_reading()
        writer.write(b"x" * 3_000_000)  # more than the socket buffers of one side hold
        handler.link.send(b"the reason")
        handler.link.close()
        assert await reader.read() == b"the reason"
        await hang_up(writer)
        await handler.until(lambda h: isinstance(h.events[-1], tuple))
        assert handler.data == b""


async def test_stop_tells_every_client_and_waits(files, authority):
    async with listening(options(files)) as (listener, handlers, port):
        reader, writer = await connect(port, client_context(authority))
        while not handlers or handlers[0].link is None:
            await asyncio.sleep(0)
        handlers[0].link.send(b"bye")
        stopping = asyncio.create_task(listener.stop(10.0))
        assert await reader.read() == b"bye"
        await hang_up(writer)
        await stopping
        assert isinstance(handlers[0].events[-1], tuple)


async def test_a_client_that_does_not_read_pauses_the_handler(files, authority):
    async with listening(options(files)) as (_, handlers, port):
        reader, writer = await connect(port, client_context(authority))
        while not handlers or handlers[0].link is None:
            await asyncio.sleep(0)
        handler, sent = handlers[0], 0
        while "pause" not in handler.events:
            handler.link.send(b"x" * 100_000)
            sent += 100_000
            await asyncio.sleep(0)
        await reader.readexactly(sent)
        await handler.until(lambda h: "resume" in h.events)
        await hang_up(writer)


async def test_a_client_that_never_takes_the_last_bytes_is_aborted(files, authority, monkeypatch):
    monkeypatch.setattr(tcp, "CLOSE_LINGER_S", 0.05)

    async with listening(options(files)) as (listener, handlers, port):
        _, writer = await connect(port, client_context(authority))
        while not handlers or handlers[0].link is None:
            await asyncio.sleep(0)
        handlers[0].link.send(b"x" * 30_000_000)  # more than both sockets and the client hold
        handlers[0].link.close()
        await handlers[0].until(lambda h: isinstance(h.events[-1], tuple))
        assert listener.connection_count == 0
        await hang_up(writer)
