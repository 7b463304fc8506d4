"""Another user with the client id of somebody who is away, on both sides of a SIGKILL.

A real gateway process is killed while one user's sessions hold messages, some of them on their way.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mqtt_raw as raw
import pytest
from gateway_process import GatewayProcess
from wire import StompClient

MESSAGES = [b"message %d" % number for number in range(30)]
#: Delivered before the kill and never acknowledged.
HALF_SENT = 5
SHARED_ID = "shared-id"
SESAME = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="

STORES = {
    "journal": '[store]\nplugin = "journal"\n',
    "sql": '[store]\nplugin = "jdbc"\n',
}

#: The command, if a client id were all that a session is found by.
WITHOUT_OWNERS = """
import sys
from tidegate.broker import owner
from tidegate.cli import main
made = owner.client_key
owner.client_key = lambda protocol, principal, client_id: made(protocol, "", client_id)
sys.exit(main())
"""


class Undefended(GatewayProcess):
    """A gateway that finds sessions by client id alone."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", WITHOUT_OWNERS, "run", "--config", str(self.config)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    return STORES[request.param]


def made(kind: type[GatewayProcess], directory: Path, store: str) -> GatewayProcess:
    users = directory / "users"
    users.touch(0o600)
    users.write_text("".join(f"{name}:{SESAME}\n" for name in ("alice", "bob", "carol")))
    return kind(
        directory, extra=f"{store}\n[[extensions]]\nplugin = 'auth-file'\nusers = '{users}'\n"
    )


def mqtt(gateway: GatewayProcess, user: str, client_id: str = SHARED_ID) -> tuple[raw.Client, int]:
    """A client, and whether its session was there."""
    client = raw.Client(gateway.mqtt_port, raw.V5)
    connack = client.connect(
        client_id, clean=False, session_expiry=1000, username=user, password=b"sesame"
    )
    assert connack.code == 0
    return client, connack.session_present


async def stomp(gateway: GatewayProcess, user: str) -> StompClient:
    return await StompClient.connect(
        gateway.stomp_port, login=user, passcode="sesame", client_id=SHARED_ID
    )


def subscribe(client: StompClient) -> None:
    client.send(
        "SUBSCRIBE", id="0", destination="/topic/news", durable_subscription_name="mine",
        ack="client-individual", receipt="subscribed",
    )  # fmt: skip


async def before_receipt(client: StompClient, receipt: str) -> list[bytes]:
    """Bodies of the messages that come before this receipt."""
    found: list[bytes] = []
    while (answer := await client.receive()).command == "MESSAGE":
        found.append(answer.body)
    assert (answer.command, answer.headers["receipt-id"]) == ("RECEIPT", receipt)
    return found


async def takes(client: StompClient, count: int) -> list[bytes]:
    """Bodies of the *count* messages of a subscription that was just asked for, and no more."""
    found: list[bytes] = []
    while len(found) < count:
        answer = await client.receive()
        if answer.command == "MESSAGE":
            client.send("ACK", id=answer.headers["ack"])
            found.append(answer.body)
        else:
            assert answer.headers["receipt-id"] == "subscribed"
    client.send("SEND", destination="/queue/elsewhere", receipt="sent")
    while (answer := await client.receive()).command != "RECEIPT" or (
        answer.headers["receipt-id"] != "sent"
    ):
        assert answer.command == "RECEIPT", "one message too many"
    return found


async def leave_messages(gateway: GatewayProcess) -> None:
    """Alice has a session and a durable subscription with messages in both when the process is killed."""
    alice, _ = mqtt(gateway, "alice")
    for name in ("news", "exactly/once"):
        assert alice.subscribe(name, 2) == 2
    over_stomp = await stomp(gateway, "alice")
    subscribe(over_stomp)
    assert await before_receipt(over_stomp, "subscribed") == []
    carol, _ = mqtt(gateway, "carol", "carol's")
    for body in MESSAGES[:HALF_SENT]:
        carol.publishes("news", body)
    for body in MESSAGES[:HALF_SENT]:
        assert alice.message().body == body
        assert (await over_stomp.receive()).body == body
    alice.drop()
    await over_stomp.aclose()
    for body in MESSAGES[HALF_SENT:]:
        carol.publishes("news", body)
    for body in MESSAGES:
        carol.publishes("exactly/once", body, qos=2)
    carol.drop()
    gateway.kill()


@pytest.mark.long
async def test_nobody_has_anything_of_another_s_after_a_kill(tmp_path: Path, store: str) -> None:
    with made(GatewayProcess, tmp_path, store) as gateway:
        await leave_messages(gateway)
        gateway.start()
        bob, is_present = mqtt(gateway, "bob")
        assert not is_present
        assert bob.is_quiet()
        over_stomp = await stomp(gateway, "bob")
        subscribe(over_stomp)
        assert await before_receipt(over_stomp, "subscribed") == []
        # What bob does with his does nothing to hers, also not what ends it.
        over_stomp.send("UNSUBSCRIBE", id="0", durable_subscription_name="mine", receipt="ended")
        assert await before_receipt(over_stomp, "ended") == []
        assert bob.subscribe("news", 1) == 1
        assert bob.is_quiet()
        bob.leave()
        bob = raw.Client(gateway.mqtt_port, raw.V5)
        assert bob.connect(SHARED_ID, username="bob", password=b"sesame").session_present == 0

        alice, is_present = mqtt(gateway, "alice")
        assert is_present
        got = [alice.takes() for _ in range(2 * len(MESSAGES))]
        for topic in ("news", "exactly/once"):
            assert [item.body for item in got if item.topic == topic] == MESSAGES
        assert alice.is_quiet()
        hers = await stomp(gateway, "alice")
        subscribe(hers)
        assert await takes(hers, len(MESSAGES)) == MESSAGES
        assert bob.is_quiet()
        for client in (alice, bob):
            client.leave()
        for client in (hers, over_stomp):
            await client.aclose()


@pytest.mark.long
async def test_without_owners_another_takes_it_all(tmp_path: Path) -> None:
    """The negative control."""
    with made(Undefended, tmp_path, STORES["journal"]) as gateway:
        await leave_messages(gateway)
        gateway.start()
        bob, is_present = mqtt(gateway, "bob")
        assert is_present
        assert {bob.takes().body for _ in range(2 * len(MESSAGES))} == set(MESSAGES)
        bob.drop()
