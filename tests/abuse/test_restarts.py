"""What one principal has made is its own after a restart, too: nobody has its share anew each time.

The gateway runs in this process, with users; each of them makes what it makes in its own way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import mqtt_raw as raw
import pytest
from wire import StompClient

from tidegate.broker.destinations import Destinations
from tidegate.spi import PendingCount, RecoveredDestination
from tidegate.testing.embedded import EmbeddedGateway

SESAME: Final = "{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw="
STORES: Final = {
    "journal": '[store]\nplugin = "journal"\n',
    "jdbc": '[store]\nplugin = "jdbc"\n',
    "journaled": '[store]\nplugin = "journaled"\n',
}
RESTARTS: Final = 2
QUOTA: Final = '[[quotas]]\nprincipal = "*"\nqueues_max = 2\nretained_limit = "4kb"\n'


@asynccontextmanager
async def gateway(directory: Path, store: str) -> AsyncIterator[EmbeddedGateway]:
    users = directory / "users"
    users.touch(0o600)
    users.write_text("".join(f"{name}:{SESAME}\n" for name in (*WAYS, *RETAINING, "other")))
    text = f"{store}[[extensions]]\nplugin = 'auth-file'\nusers = '{users}'\n{QUOTA}"
    async with EmbeddedGateway(text, data_directory=directory / "data") as running:
        yield running


async def by_stomp(running: EmbeddedGateway, user: str, command: str, **headers: str) -> bool:
    """Whether it is done; what is told otherwise names the limit."""
    client = await StompClient.connect(running.stomp_port, login=user, passcode="sesame")
    client.send(command, b"x" * (command == "SEND"), receipt="r", **headers)
    answer = await client.receive()
    await client.aclose()
    assert answer.command == "RECEIPT" or "quotas." in answer.headers["message"], answer
    return answer.command == "RECEIPT"


async def by_mqtt(
    running: EmbeddedGateway, user: str, version: int, act: Callable[..., int]
) -> int:
    """What *act* makes of a client that is connected."""

    def talk() -> int:
        client = raw.Client(running.mqtt_port, version)
        try:
            client.connect(f"of {user}", username=user, password=b"sesame")
            return act(client)
        finally:
            client.close()

    return await asyncio.to_thread(talk)


async def sends(running: EmbeddedGateway, user: str, name: str) -> bool:
    return await by_stomp(running, user, "SEND", destination=f"/queue/{name}")


async def subscribes(running: EmbeddedGateway, user: str, name: str) -> bool:
    return await by_stomp(running, user, "SUBSCRIBE", destination=f"/queue/{name}", id="0")


async def publishes(running: EmbeddedGateway, user: str, name: str) -> bool:
    def act(client: raw.Client) -> int:
        return client.publishes(f"$queue/{name}", b"x").code

    code = await by_mqtt(running, user, raw.V5, act)
    assert code in (0, 0x10, 0x97)  # 0x10: nobody subscribes to it
    return code != 0x97


async def consumes(running: EmbeddedGateway, user: str, name: str) -> bool:
    def act(client: raw.Client) -> int:
        return client.subscribe(f"$queue/{name}", 1)

    return await by_mqtt(running, user, raw.V311, act) == 1


async def retains(running: EmbeddedGateway, user: str, name: str) -> bool:
    def act(client: raw.Client) -> int:
        return client.publishes(name, bytes(2500), retain=True).code

    code = await by_mqtt(running, user, raw.V5, act)
    assert code in (0, 0x10, 0x97)  # 0x10: nobody subscribes to it
    return code != 0x97


async def clears(running: EmbeddedGateway, user: str, name: str) -> bool:
    def act(client: raw.Client) -> int:
        return client.publishes(name, b"", retain=True).code

    return not await by_mqtt(running, user, raw.V311, act)


async def retains_by_stomp(running: EmbeddedGateway, user: str, name: str) -> bool:
    topic = "/topic/" + name.replace("/", ".")
    return await by_stomp(running, user, "SEND", destination=topic, retain="true", pad="x" * 2500)


#: How a user makes a queue, and whose messages are retained, each by the user who does so.
WAYS: Final = {
    "sender": sends, "subscriber": subscribes, "publisher": publishes, "consumer": consumes
}  # fmt: skip
RETAINING: Final = {"painter": retains, "writer": retains_by_stomp}


def queues(running: EmbeddedGateway) -> int:
    return len(running.gateway.broker.destinations.queues)


@pytest.mark.parametrize("store", STORES)
async def test_who_has_made_its_queues_makes_no_more_after_a_restart(
    tmp_path: Path, store: str
) -> None:
    async with gateway(tmp_path, STORES[store]) as running:
        for user, make in WAYS.items():
            made = [await make(running, user, f"{user}.{number}") for number in range(3)]
            assert made == [True, True, False], user
        for turn in range(RESTARTS):
            await running.restart()
            for user, make in WAYS.items():
                assert not await make(running, user, f"{user}.more.{turn}"), user
                assert await make(running, user, f"{user}.0"), "those that there are it may use"
                assert await make(running, "other", f"{user}.0"), "and others, too"
        assert queues(running) == 2 * len(WAYS)
        assert await sends(running, "other", "first")
        assert await publishes(running, "other", "second")
        assert not await consumes(running, "other", "third")


async def test_without_owners_each_restart_gives_everybody_the_whole_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the gateway did when the store did not know who had made a queue."""
    restore = Destinations.restore_queue

    def as_nobodys(self: Destinations, found: RecoveredDestination, pending: PendingCount) -> None:
        restore(self, RecoveredDestination(found.destination, found.pending_list), pending)

    monkeypatch.setattr(Destinations, "restore_queue", as_nobodys)
    async with gateway(tmp_path, STORES["jdbc"]) as running:
        for turn in range(RESTARTS):
            made = [await sends(running, "sender", f"{turn}.{number}") for number in range(3)]
            assert made == [True, True, False]
            await running.restart()
        assert queues(running) == 2 * RESTARTS


@pytest.mark.parametrize("store", STORES)
async def test_who_has_retained_its_share_retains_no_more_after_a_restart(
    tmp_path: Path, store: str
) -> None:
    async with gateway(tmp_path, STORES[store]) as running:
        for user, retain in RETAINING.items():
            assert await retain(running, user, f"{user}/0")
            assert not await retain(running, user, f"{user}/1")
        await running.restart()
        for user, retain in RETAINING.items():
            assert not await retain(running, user, f"{user}/1"), user
            assert await retain(running, user, f"{user}/0"), "one for another needs no room"
            assert await retain(running, "other", f"{user}/0"), "it is the other's from now on"
            assert await retain(running, user, f"{user}/1"), "and its room is the first one's again"
            assert not await retain(running, "other", "third")
            assert await clears(running, "other", f"{user}/0")
