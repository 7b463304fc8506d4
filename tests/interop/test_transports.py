"""Clients that are not ours over TLS, WebSocket and WSS against the running gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
import stomp
import trustme
from free_ports import free_port
from gateway_process import GatewayProcess
from paho.mqtt.enums import CallbackAPIVersion
from stomp.exception import StompException
from stomp_recorder import Recorder
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed

pytestmark = pytest.mark.interop
WAIT_S = 60.0
KINDS = ("tls", "ws", "wss")


class Gateway:
    """A gateway process with a listener of each protocol for each transport beside TCP."""

    def __init__(self, directory: Any) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        self.ca, self.client = str(directory / "ca.pem"), str(directory / "client.pem")
        authority.cert_pem.write_to_path(self.ca)
        server.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
        authority.issue_cert("anna@harbour.example").private_key_and_cert_chain_pem.write_to_path(
            self.client
        )
        self.ports = {(p, k): free_port() for p in ("stomp", "mqtt") for k in KINDS}
        tls = f'tls_certificate = "{directory / "server.pem"}"'
        mutual = f'{tls}\ntls_client_certificate = "required"\ntls_ca = "{self.ca}"'
        extra = "".join(
            f'\n[[listeners]]\nprotocol = "{protocol}"\ntransport = "{kind}"\n'
            f'bind = "127.0.0.1:{port}"\n{ {"tls": mutual, "ws": "", "wss": tls}[kind] }\n'
            for (protocol, kind), port in self.ports.items()
        )
        self.process = GatewayProcess(directory, extra=extra)

    def url(self, kind: str) -> str:
        return f"{kind}://127.0.0.1:{self.ports['stomp', kind]}/stomp"

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    made = Gateway(tmp_path_factory.mktemp("gateway"))
    with made.process as running:
        yield made
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()


def exchange(connection: Any, name: str) -> None:
    """Send with a receipt, receive, acknowledge, disconnect."""
    recorder = Recorder()
    connection.set_listener("recorder", recorder)
    connection.connect(wait=True)
    connection.subscribe(name, id="1", ack="client-individual")
    for number in range(20):
        connection.send(name, f"number {number} €", receipt=f"r{number}")
    receipts = [recorder.receipts.get(timeout=WAIT_S) for _ in range(20)]
    assert receipts == [f"r{n}" for n in range(20)]
    for number in range(20):
        frame = recorder.messages.get(timeout=WAIT_S)
        body = frame.body if isinstance(frame.body, str) else frame.body.decode()
        assert body == f"number {number} €"
        connection.ack(frame.headers["ack"])
    connection.disconnect(receipt="bye")
    assert recorder.receipts.get(timeout=WAIT_S) == "bye"
    assert recorder.errors.empty()


def test_stomp_py_over_tls_with_a_client_certificate(gateway) -> None:
    port = gateway.ports["stomp", "tls"]
    connection = stomp.Connection12([("127.0.0.1", port)])
    connection.set_ssl(
        [("127.0.0.1", port)],
        ca_certs=gateway.ca,
        cert_file=gateway.client,
        key_file=gateway.client,
    )
    exchange(connection, "/queue/tls")


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLSv1_2 is deprecated")
def test_stomp_py_over_tls_without_a_certificate_is_refused(gateway) -> None:
    port = gateway.ports["stomp", "tls"]
    connection = stomp.Connection12([("127.0.0.1", port)], reconnect_attempts_max=1)
    # With TLS 1.3 the client learns of it only behind the handshake, where stomp.py passes over the end
    # of an encrypted connection and reads on for ever.
    connection.set_ssl([("127.0.0.1", port)], ca_certs=gateway.ca, ssl_version=ssl.PROTOCOL_TLSv1_2)
    with pytest.raises(StompException):
        connection.connect(wait=True)


@pytest.mark.parametrize("is_binary", [False, True])
def test_stomp_py_over_websocket(gateway, is_binary) -> None:
    port = gateway.ports["stomp", "ws"]
    connection = stomp.WSStompConnection(
        [("127.0.0.1", port)], ws_path="/stomp", binary_mode=is_binary
    )
    exchange(connection, f"/queue/ws.{is_binary}")


def test_stomp_py_over_wss(gateway) -> None:
    address = ("127.0.0.1", gateway.ports["stomp", "wss"])
    connection = stomp.WSStompConnection([address], ws_path="/stomp")
    connection.set_ssl([address], ca_certs=gateway.ca)
    exchange(connection, "/queue/wss")


# With asyncio, not threads: two of them on one TLS socket, as in the library's other client, are
# more than Python's ssl module stands before 3.13; now and then a request was never sent.
async def received(client: Any) -> str | bytes:
    async with asyncio.timeout(WAIT_S):
        return await client.recv()


@pytest.mark.parametrize("kind", ["ws", "wss"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_the_subprotocol_binds_the_version_and_kinds_are_kept(gateway, kind, version) -> None:
    subprotocol: Any = f"v{version.replace('.', '')}.stomp"
    arguments: dict[str, Any] = {"ssl": gateway.context()} if kind == "wss" else {}
    async with websocket_connect(
        gateway.url(kind), subprotocols=[subprotocol], proxy=None, open_timeout=WAIT_S, **arguments
    ) as client:
        assert client.subprotocol == subprotocol
        await client.send("CONNECT\naccept-version:1.0,1.1,1.2\nhost:x\n\n\0")
        answer = await received(client)
        assert isinstance(answer, str)
        assert answer.startswith("CONNECTED\n")
        assert f"version:{version}\n" in answer
        name = f"/queue/kinds.{kind}.{version}"
        await client.send(f"SUBSCRIBE\nid:1\ndestination:{name}\nack:auto\n\n\0")
        head = f"SEND\ndestination:{name}\ncontent-length:2\n\n"
        await client.send(
            head.encode() + b"\xff\x00\0" + f"{head}ok\0".encode()
        )  # two frames, binary
        frames = [await received(client), await received(client)]
        assert all(isinstance(frame, bytes) for frame in frames)
        assert [frame[-3:-1] for frame in frames] == [b"\xff\x00", b"ok"]
        for character in f"{head}ok\0":
            await client.send(character)
        answer = await received(client)
        assert isinstance(answer, str)
        assert answer.endswith("ok\0")
        await client.send("DISCONNECT\nreceipt:bye\n\n\0")
        assert await received(client) == "RECEIPT\nreceipt-id:bye\n\n\0"
        with pytest.raises(ConnectionClosed) as raised:
            await received(client)
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == 1000


async def test_a_version_that_the_subprotocol_does_not_allow_is_an_error_frame(gateway) -> None:
    subprotocols: Any = ["v11.stomp"]
    async with websocket_connect(
        gateway.url("ws"), subprotocols=subprotocols, proxy=None, open_timeout=WAIT_S
    ) as client:
        await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        answer = await received(client)
        assert isinstance(answer, str)
        assert answer.startswith("ERROR\n")
        assert "requires STOMP 1.1" in answer


@pytest.mark.parametrize("kind", KINDS)
def test_paho_over_every_transport(gateway, kind) -> None:
    transport: Any = "tcp" if kind == "tls" else "websockets"
    client: Any = paho.Client(CallbackAPIVersion.VERSION2, transport=transport)
    client.connect_timeout = WAIT_S
    if kind == "tls":
        client.tls_set(gateway.ca, gateway.client, gateway.client)
    elif kind == "wss":
        client.tls_set(gateway.ca)
    got: list[bytes] = []
    client.on_message = lambda _client, _data, message: got.append(message.payload)
    client.on_subscribe = lambda *_: client.publish(f"kinds/{kind}", b"x" * 70_000, qos=1)
    client.on_connect = lambda *_: client.subscribe(f"kinds/{kind}", qos=1)
    client.connect("127.0.0.1", gateway.ports["mqtt", kind])
    for _ in range(int(WAIT_S * 10)):
        client.loop(timeout=0.1)
        if got:
            break
    assert got == [b"x" * 70_000]
    client.disconnect()
    client.loop(timeout=0.1)
