"""What let somebody in is taken back while it is connected: over both protocols, and for good."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import mqtt_raw as raw
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_auth_file import _directory
from tidegate_auth_file._hashes import make_hash
from tidegate_auth_jwt import _keys

LIMIT_S = 120.0
LISTENERS = "".join(
    f"[[listeners]]\nprotocol = '{protocol}'\nbind = '127.0.0.1:0'\n"
    for protocol in ("mqtt", "stomp")
)


def put(path: Path, text: str) -> Path:
    made = path.with_suffix(".new")
    made.touch(0o600)
    made.write_text(text)
    made.replace(path)
    return path


class Users:
    """A file of users; how alice logs in, and what can be done to her."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "users"
        self.password = "sesame"
        self.bob = self.line("bob", "b")
        put(self.path, self.line("alice", "sesame") + self.bob)
        self.extension = f"plugin = 'auth-file'\nusers = '{self.path}'\n"

    @staticmethod
    def line(name: str, password: str) -> str:
        return f"{name}:{make_hash(password, memory_kib=64, time_cost=1).written()}\n"

    def another(self) -> None:
        """One more user changes nothing for alice."""
        put(self.path, self.path.read_text() + self.line("carol", "c"))

    def gone(self) -> None:
        put(self.path, self.bob)

    def new_password(self) -> None:
        put(self.path, self.line("alice", "another") + self.bob)


class Keys:
    """A file of keys, the same."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "jwks.json"
        self.keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
        self.write(("a", 0), ("b", 1))
        claims = {"iss": "i", "aud": "a", "sub": "alice", "exp": int(time.time()) + 3600}
        self.password = jwt.encode(claims, self.keys[0], "ES256", {"kid": "a"})
        self.extension = (
            f"plugin = 'auth-jwt'\njwks = '{self.path}'\nissuer = 'i'\naudience = ['a']\n"
        )

    def write(self, *kept: tuple[str, int]) -> None:
        keys = [
            ECAlgorithm.to_jwk(self.keys[number].public_key(), as_dict=True) | {"kid": kid}
            for kid, number in kept
        ]
        put(self.path, json.dumps({"keys": keys}))

    def another(self) -> None:
        """One more key, and one fewer that nobody came by: nothing for alice."""
        self.write(("a", 0), ("c", 2))

    def gone(self) -> None:
        self.write(("b", 1))

    def exchanged(self) -> None:
        """Another key by the same name."""
        self.write(("a", 2), ("b", 1))


async def packet(reader: asyncio.StreamReader) -> raw.Packet:
    async with asyncio.timeout(LIMIT_S):
        head = await reader.readexactly(2)
        assert head[1] < 128, "all that comes here is short"
        return raw.read_packet(head + await reader.readexactly(head[1]), raw.V5)


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        (Users, Users.gone),
        (Users, Users.new_password),
        (Keys, Keys.gone),
        (Keys, Keys.exchanged),
    ],
    ids=lambda value: value.__name__,
)
async def test_connections_end_and_the_old_way_in_is_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], Any], act: Any
) -> None:
    for module in (_directory, _keys):
        monkeypatch.setattr(module, "WATCH_INTERVAL_S", 0.001)
    made = kind(tmp_path)
    config = f"[broker]\npersistent = false\n[[extensions]]\n{made.extension}{LISTENERS}"
    password = made.password
    async with EmbeddedGateway(config) as gateway:
        connect = raw.connect(
            "c", version=raw.V5, username="alice", password=password.encode(), session_expiry=100
        )
        mqtt, writer = await asyncio.open_connection("127.0.0.1", gateway.mqtt_port)
        writer.write(connect)
        assert (await packet(mqtt)).code == 0
        stomp = await StompClient.connect(gateway.stomp_port, login="alice", passcode=password)
        # The negative control: a change that is not about her.
        made.another()
        for extension in gateway.gateway.broker.extensions:
            await getattr(extension, "_users" if kind is Users else "_keys").refresh()
        writer.write(raw.packet(0xC0))
        assert (await packet(mqtt)).kind == raw.PINGRESP
        stomp.send("SEND", destination="/queue/q", receipt="r")
        await stomp.receipt("r")

        act(made)
        ended = await packet(mqtt)
        assert (ended.kind, ended.code) == (raw.DISCONNECT, 0x87)
        error = await stomp.receive()
        assert error.command == "ERROR"
        assert "log in again" in error.headers["message"]
        again, other = await asyncio.open_connection("127.0.0.1", gateway.mqtt_port)
        other.write(connect)
        refused = await packet(again)
        assert refused.code in {0x86, 0x87}
        await stomp.aclose()
        for one in (writer, other):
            one.close()
