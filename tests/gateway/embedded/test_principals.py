"""Two users with the same client id, over real sockets and after a kill: by password and by certificate."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any, Self

import mqtt_raw as raw
import pytest
import trustme

from tidegate.config import parse_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError
from tidegate.testing.embedded import EmbeddedGateway

WAIT_S = 60

#: No checkpoint comes between the files of a copy.
STORE = '[store]\nplugin = "journal"\ncheckpoint_interval = "1h"\ncleanup_interval = "1h"\n'

LISTENER = """
[[listeners]]
protocol = "{protocol}"
transport = "tls"
bind = "127.0.0.1:0"
tls_certificate = "{files}/server.pem"
tls_key = "{files}/server.key"
tls_ca = "{files}/ca.pem"
tls_client_certificate = "required"
tls_principal = "CN"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of the gateway, of ann, bob, anonymous, and of somebody without a common name."""
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    server = authority.issue_cert("localhost")
    server.cert_chain_pems[0].write_to_path(directory / "server.pem")
    server.private_key_pem.write_to_path(directory / "server.key")
    for name in ("ann", "bob", "anonymous", "nobody"):
        common_name = None if name == "nobody" else name
        issued = authority.issue_cert(
            f"{name}.example",
            common_name=common_name,
            organization_unit_name="sensors" if name == "ann" else None,
        )
        issued.private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")
    return directory


def certificate(files: Path, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files / "ca.pem")
    context.load_cert_chain(files / f"{name}.pem")
    return context


class Wire:
    """A client's socket; *name*: whose certificate it shows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def dial(cls, port: int, files: Path, name: str) -> Self:
        context = certificate(files, name)
        return cls(*await asyncio.open_connection("localhost", port, ssl=context))

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


class Mqtt(Wire):
    version = raw.V311

    async def packet(self) -> raw.Packet:
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readexactly(2)
            assert head[1] < 128, "all that comes here is short"
            body = await self.reader.readexactly(head[1])
        return raw.read_packet(head + body, self.version)

    async def connect(self, version: int, *, clean: bool = False, **more: Any) -> raw.Packet:
        self.version = version
        if version == raw.V5:
            more = {"session_expiry": 1000, **more}
        self.writer.write(raw.connect("shared-id", version=version, clean=clean, **more))
        return await self.packet()

    async def subscribe(self, name: str) -> None:
        self.writer.write(raw.subscribe(1, (name, 1), version=self.version))
        assert (await self.packet()).kind == raw.SUBACK

    async def publish(self, topic: str, body: bytes) -> None:
        self.writer.write(raw.publish(topic, body, version=self.version, qos=1, packet_id=9))
        assert (await self.packet()).kind == raw.PUBACK

    async def is_quiet(self) -> bool:
        """Nothing waits for it: the answer to PINGREQ is what comes next."""
        self.writer.write(raw.packet(0xC0))
        return (await self.packet()).kind == raw.PINGRESP


class Stomp(Wire):
    async def frame(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return (await self.reader.readuntil(b"\0")).decode().strip("\n\0")

    def send(self, *lines: str, body: str = "") -> None:
        self.writer.write(("\n".join(lines) + f"\n\n{body}\0").encode())

    async def connect(self) -> str:
        self.send("CONNECT", "accept-version:1.2", "host:h", "client-id:shared-id")
        return await self.frame()

    async def subscribe(self) -> None:
        self.send(
            "SUBSCRIBE", "id:0", "destination:/topic/news", "durable-subscription-name:news",
            "ack:client", "receipt:s",
        )  # fmt: skip
        assert "receipt-id:s" in await self.frame()

    async def is_quiet(self) -> bool:
        """Nothing waits for it: the answer to a SEND elsewhere is what comes next."""
        self.send("SEND", "destination:/queue/elsewhere", "receipt:q", body="x")
        return "receipt-id:q" in await self.frame()


@pytest.fixture
def config(files: Path) -> str:
    return STORE + "".join(
        LISTENER.format(protocol=name, files=files) for name in ("stomp", "mqtt")
    )


async def killed(gateway: EmbeddedGateway, config: str, target: Path) -> EmbeddedGateway:
    """A gateway that begins with what a SIGKILL would have left of this one."""
    await asyncio.to_thread(
        shutil.copytree,
        gateway.data_directory,
        target,
        ignore=shutil.ignore_patterns("*.tmp", "*.sock"),
    )
    return EmbeddedGateway(config, data_directory=target)


@pytest.mark.parametrize("version", [raw.V311, raw.V5])
async def test_an_mqtt_session_is_its_users_whoever_names_its_client_id(
    files: Path, config: str, tmp_path: Path, version: int
) -> None:
    async with EmbeddedGateway(config, data_directory=tmp_path / "first") as gateway:
        port = gateway.mqtt_port
        ann = await Mqtt.dial(port, files, "ann")
        assert (await ann.connect(version)).session_present == 0
        await ann.subscribe("news")
        bob = await Mqtt.dial(port, files, "bob")
        assert (await bob.connect(version)).session_present == 0
        assert await ann.is_quiet()  # she was not disconnected
        await ann.close()
        await bob.publish("news", b"for ann")
        await bob.close()
        again = await killed(gateway, config, tmp_path / "second")
    async with again as gateway:
        port = gateway.mqtt_port
        bob = await Mqtt.dial(port, files, "bob")
        assert (await bob.connect(version)).session_present == 1  # his own
        assert await bob.is_quiet()
        await bob.close()
        bob = await Mqtt.dial(port, files, "bob")
        await bob.connect(version, clean=True)
        await bob.subscribe("news")
        assert await bob.is_quiet()
        ann = await Mqtt.dial(port, files, "ann")
        assert (await ann.connect(version)).session_present == 1
        delivered = await ann.packet()
        assert (delivered.kind, delivered.body) == (raw.PUBLISH, b"for ann")
        assert await bob.is_quiet()
        for client in (ann, bob):
            await client.close()


async def test_a_durable_subscription_is_its_users_whoever_names_it(
    files: Path, config: str, tmp_path: Path
) -> None:
    async with EmbeddedGateway(config, data_directory=tmp_path / "first") as gateway:
        port = gateway.stomp_port
        ann = await Stomp.dial(port, files, "ann")
        assert (await ann.connect()).startswith("CONNECTED")
        await ann.subscribe()
        await ann.close()
        sender = await Mqtt.dial(gateway.mqtt_port, files, "bob")
        await sender.connect(raw.V5)
        await sender.publish("news", b"for ann")
        await sender.close()
        again = await killed(gateway, config, tmp_path / "second")
    async with again as gateway:
        port = gateway.stomp_port
        bob = await Stomp.dial(port, files, "bob")
        assert (await bob.connect()).startswith("CONNECTED")
        await bob.subscribe()
        assert await bob.is_quiet()
        bob.send("UNSUBSCRIBE", "id:0", "durable-subscription-name:news", "receipt:u")
        assert "receipt-id:u" in await bob.frame()
        mqtt = await Mqtt.dial(gateway.mqtt_port, files, "bob")
        assert (await mqtt.connect(raw.V5)).session_present == 1
        await mqtt.subscribe("news")
        assert await mqtt.is_quiet()
        ann = await Stomp.dial(port, files, "ann")
        await ann.connect()
        ann.send(
            "SUBSCRIBE", "id:0", "destination:/topic/news", "durable-subscription-name:news",
            "ack:client",
        )  # fmt: skip
        assert (await ann.frame()).endswith("for ann")
        for client in (ann, bob, mqtt):
            await client.close()


@pytest.mark.parametrize("name", ["anonymous", "nobody"])
async def test_a_certificate_that_names_nobody_lets_nobody_in(
    files: Path, config: str, tmp_path: Path, name: str
) -> None:
    async with EmbeddedGateway(config, data_directory=tmp_path) as gateway:
        for version, codes in ((raw.V311, (5, 4)), (raw.V5, (0x87, 0x86))):
            # Neither does a password, which nobody here checks.
            logins: list[dict[str, Any]] = [{}, {"username": "ann", "password": b"x"}]
            for code, login in zip(codes, logins, strict=True):
                mqtt = await Mqtt.dial(gateway.mqtt_port, files, name)
                connack = await mqtt.connect(version, **login)
                assert (connack.kind, connack.code) == (raw.CONNACK, code)
                assert await mqtt.reader.read() == b""
                await mqtt.close()
        stomp = await Stomp.dial(gateway.stomp_port, files, name)
        assert (await stomp.connect()).startswith("ERROR")
        await stomp.close()
        assert not gateway.gateway.broker.connections


RULES = """
[[rules]]
allow = "connect"

[[rules]]
allow = ["publish", "subscribe"]
destinations = "topic://news"
groups = "sensors"
"""


@pytest.mark.parametrize("groups", ['tls_groups = "OU"', ""], ids=["by its unit", "without"])
async def test_rules_by_group_count_for_certificates(
    files: Path, config: str, tmp_path: Path, groups: str
) -> None:
    rules = tmp_path / "rules.toml"
    rules.touch(0o600)
    rules.write_text(RULES)
    config = config.replace('tls_principal = "CN"', f'tls_principal = "CN"\n{groups}')
    config += f'[[extensions]]\nplugin = "acl"\nrules = "{rules}"\n'
    async with EmbeddedGateway(config, data_directory=tmp_path / "data") as gateway:
        for name, may in (("ann", bool(groups)), ("bob", False)):
            mqtt = await Mqtt.dial(gateway.mqtt_port, files, name)
            assert (await mqtt.connect(raw.V5)).code == 0
            mqtt.writer.write(raw.subscribe(1, ("news", 1), version=raw.V5))
            assert (await mqtt.packet()).codes == ((1,) if may else (0x87,))
            await mqtt.close()
            stomp = await Stomp.dial(gateway.stomp_port, files, name)
            assert (await stomp.connect()).startswith("CONNECTED")
            stomp.send("SEND", "destination:/topic/news", "receipt:r", body="x")
            assert (await stomp.frame()).startswith("RECEIPT" if may else "ERROR")
            await stomp.close()


def test_a_listener_that_knows_its_clients_needs_no_authenticator(files: Path) -> None:
    reachable = LISTENER.format(protocol="mqtt", files=files).replace("127.0.0.1:0", "0.0.0.0:8883")
    (listener,) = resolve(parse_config(reachable), PluginHost()).listeners
    assert not listener.config.allow_anonymous
    without = reachable.replace('tls_principal = "CN"', "")
    with pytest.raises(ConfigError, match="nothing authenticates clients"):
        resolve(parse_config(without), PluginHost())
