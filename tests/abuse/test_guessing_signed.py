"""Floods of logins that cost the event loop itself: signatures of tokens, and answers in SCRAM.

Counted is how many were looked at before the right one was let in. Pauses are so long that none of
them ends while a test runs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import jwt
import mqtt_raw as raw
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from scramp import ScramClient

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_auth_file import _exchange
from tidegate_auth_file._verifier import make
from tidegate_auth_jwt import _authenticator

FLOOD = 60
LIMIT_S = 120.0
METHOD = "SCRAM-SHA-256"
#: What an address may get wrong before it has to pause: for one user, and altogether.
FREE, FREE_OF_ADDRESS = 3, 30
#: And what is under way by then (``login_checks_max``).
RUNNING = 8


def config(extension: str, delay: str) -> str:
    return (
        "[broker]\npersistent = false\n"
        f"login_delay = {delay}\n"
        f"[[extensions]]\n{extension}\n"
        "[[listeners]]\nprotocol = 'mqtt'\nbind = '127.0.0.1:0'\n"
        f"connect_timeout = '{LIMIT_S:.0f}s'\n"
    )


class Client:
    """One connection from an address of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def packet(self) -> raw.Packet:
        async with asyncio.timeout(LIMIT_S):
            head = await self.reader.readexactly(2)
            while head[-1] & 0x80:
                head += await self.reader.readexactly(1)
            length = sum((digit & 0x7F) << 7 * at for at, digit in enumerate(head[1:]))
            return raw.read_packet(head + await self.reader.readexactly(length), raw.V5)

    async def log_in(self, name: str, password: str, client_id: str) -> raw.Packet:
        """By SCRAM; the last packet that came."""
        scram = ScramClient([METHOD], name, password)
        first = scram.get_client_first().encode()
        self.writer.write(
            raw.connect(client_id, version=raw.V5, auth_method=METHOD, auth_data=first)
        )
        answer = await self.packet()
        if answer.kind == raw.AUTH:
            assert answer.props is not None
            scram.set_server_first(answer.props["auth_data"].decode())
            last = scram.get_client_final().encode()
            self.writer.write(raw.auth(0x18, auth_method=METHOD, auth_data=last))
            answer = await self.packet()
        return answer

    async def show(self, token: str, client_id: str) -> raw.Packet:
        self.writer.write(
            raw.connect(client_id, version=raw.V5, username="", password=token.encode())
        )
        return await self.packet()


@asynccontextmanager
async def clients(
    gateway: EmbeddedGateway, address: str, count: int = 1
) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        made: list[Client] = []
        for _ in range(count):
            streams = await asyncio.open_connection(
                "127.0.0.1", gateway.mqtt_port, local_addr=(address, 0)
            )
            stack.callback(streams[1].close)
            made.append(Client(*streams))
        yield made


@asynccontextmanager
async def flood(
    gateway: EmbeddedGateway, attempt: Callable[[Client, int], asyncio.Task[raw.Packet]]
) -> AsyncIterator[None]:
    """All have sent what they have, and as many as may have been looked at."""
    logins = gateway.gateway.broker._authentication
    async with clients(gateway, "127.0.0.1", FLOOD) as attackers:
        tasks = [attempt(client, number) for number, client in enumerate(attackers)]
        async with asyncio.timeout(LIMIT_S):
            while logins.refused_count + logins.checks.waiting_count < FLOOD:
                await asyncio.sleep(0.001)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("is_on", [True, False], ids=["defence on", "off"])
async def test_tokens_that_nobody_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    good, bad = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    jwks = tmp_path / "jwks.json"
    jwks.touch(0o600)
    key = ECAlgorithm.to_jwk(good.public_key(), as_dict=True)
    jwks.write_text(json.dumps({"keys": [key | {"kid": "a"}]}))
    checked: list[str] = []
    principal_of = _authenticator.principal_of

    def counted(token: str, *more: object) -> object:
        checked.append(token)
        return principal_of(token, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(_authenticator, "principal_of", counted)

    def token(signer: object, sub: str) -> str:
        claims = {"iss": "i", "aud": "a", "sub": sub, "exp": int(time.time()) + 3600}
        return jwt.encode(claims, signer, "ES256", {"kid": "a"})  # type: ignore[arg-type]

    extension = f"plugin = 'auth-jwt'\njwks = '{jwks}'\nissuer = 'i'\naudience = ['a']"
    async with EmbeddedGateway(config(extension, "'60s'" if is_on else "0")) as gateway:

        def attempt(client: Client, number: int) -> asyncio.Task[raw.Packet]:
            return asyncio.create_task(client.show(token(bad, "alice"), f"guess{number}"))

        async with clients(gateway, "127.0.0.1") as (known,):
            assert (await known.show(token(good, "alice"), "known")).code == 0
        async with flood(gateway, attempt):
            looked_at = len(checked) - 1
            assert looked_at <= FREE_OF_ADDRESS + RUNNING if is_on else looked_at == FLOOD
            for address, client_id in (("127.0.0.2", "device"), ("127.0.0.1", "known")):
                async with clients(gateway, address) as (right,):
                    assert (await right.show(token(good, "alice"), client_id)).code == 0
            assert len(checked) - 1 == looked_at + 2


@pytest.mark.parametrize("is_on", [True, False], ids=["defence on", "off"])
async def test_answers_in_scram(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text(f"alice:{make('sesame', METHOD, 4096, b'0123456789abcdef').written()}\n")
    answered: list[str] = []
    final = _exchange.ScramExchange._final

    def counted(exchange: _exchange.ScramExchange, text: str) -> str:
        answered.append(text)
        return final(exchange, text)

    monkeypatch.setattr(_exchange.ScramExchange, "_final", counted)
    extension = f"plugin = 'auth-file'\nusers = '{users}'"
    async with EmbeddedGateway(config(extension, "'60s'" if is_on else "0")) as gateway:

        def attempt(client: Client, number: int) -> asyncio.Task[raw.Packet]:
            return asyncio.create_task(client.log_in("alice", f"w{number}", f"guess{number}"))

        async with flood(gateway, attempt):
            # For alice, however many client ids who guesses has, and whatever it calls her.
            assert len(answered) <= FREE + RUNNING if is_on else len(answered) == FLOOD
            before = len(answered)
            async with clients(gateway, "127.0.0.2") as (right,):
                assert (await right.log_in("alice", "sesame", "device")).code == 0
            assert len(answered) == before + 1
