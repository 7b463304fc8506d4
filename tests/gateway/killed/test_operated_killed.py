"""A gateway that is killed in the middle of what an operator asks for: each message is in one place, once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from operated_kills import begin, killed_again_and_again
from wire import StompClient

from tidegate.broker.purged import kept_name
from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    BrowseMessages,
    CreateDestination,
    DestinationDetails,
    Done,
    ListPurged,
    MessagePage,
    MoveMessages,
    PurgeDestination,
    PurgedPage,
    ShowDestination,
    UndoPurge,
)

A, B = "queue://a", "queue://b"
COUNT = 5000


async def fill(port: int) -> None:
    client = await StompClient.connect(port)
    for number in range(COUNT):
        last = {"receipt": "r"} if number == COUNT - 1 else {}
        client.send("SEND", str(number).encode(), destination="/queue/a", **last)
    await client.receipt("r")
    client.close()


async def browse(port: int, queue: str, count: int) -> list[int]:
    """All of it, in order: no more than *count*, or the browsing would not be over by then."""
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", id="b", destination=f"/queue/{queue}", browser="true")
    found: list[int] = []
    while True:
        frame = await client.receive()
        if frame.command == "MESSAGE" and frame.headers.get("browser") == "end":
            break
        found.append(int(frame.body))
    client.close()
    assert len(found) == count
    return found


def pending(gateway: Path, destination: str) -> int:
    with OperatorClient(gateway) as client:
        answer = client.ask(ShowDestination(destination)).answer
    assert isinstance(answer, DestinationDetails)
    return answer.row.pending


@pytest.mark.long
@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
async def test_a_killed_move_loses_nothing_doubles_nothing_and_can_be_gone_on_with(
    tmp_path: Path, store: str
) -> None:
    data = tmp_path / "data"
    with GatewayProcess(tmp_path, extra=f'[store]\nplugin = "{store}"\n') as gateway:
        await fill(gateway.stomp_port)
        with OperatorClient(data) as client:
            assert client.ask(CreateDestination(B)).error is None
        asking = begin(data, MoveMessages(A, B))
        while not pending(data, B):
            pass
        gateway.kill()
        asking.join()
        gateway.start()
        moved, left = pending(data, B), pending(data, A)
        assert moved
        assert await browse(gateway.stomp_port, "b", moved) == list(range(moved))
        assert await browse(gateway.stomp_port, "a", left) == list(range(moved, COUNT))
        with OperatorClient(data) as client:
            answer = client.ask(MoveMessages(A, B)).answer
        assert isinstance(answer, Done)
        assert answer.count == left
        assert await browse(gateway.stomp_port, "b", COUNT) == list(range(COUNT))
        asking = begin(data, PurgeDestination(B))
        while pending(data, B) == COUNT:
            pass
        gateway.kill()
        asking.join()
        gateway.start()
        left = pending(data, B)
        assert await browse(gateway.stomp_port, "b", left) == list(range(COUNT - left, COUNT))


@pytest.mark.long
@pytest.mark.parametrize("what", ["retry", "purge"])
async def test_a_killed_request_under_load_leaves_each_message_in_one_place(
    tmp_path: Path, what: str
) -> None:
    await killed_again_and_again(tmp_path, "journal", what, kills=1, seed=3)


@pytest.mark.long
async def test_a_killed_purge_that_can_be_undone_and_its_undo_lose_nothing(tmp_path: Path) -> None:
    data, until = tmp_path / "data", time.time_ns() // 1000 + 3_600_000_000
    purge, kept = PurgeDestination(A, keep_until=until), kept_name(A, until)
    undo = UndoPurge(kept)
    with GatewayProcess(tmp_path) as gateway:
        await fill(gateway.stomp_port)
        for request, source, target in ((purge, A, kept), (undo, kept, A)):
            asking = begin(data, request)
            while not purged_or_pending(data, target):
                pass
            gateway.kill()
            asking.join()
            gateway.start()
            moved = pending(data, target)
            assert moved
            assert stored(data, target) + stored(data, source) == list(range(COUNT))
            with OperatorClient(data) as client:
                there = client.ask(ShowDestination(kept)).answer
                answer = client.ask(request).answer
            if there is None:  # it was done, all of it, when the gateway was killed
                assert (request, moved) == (undo, COUNT)
                continue
            assert isinstance(there, DestinationDetails)
            assert there.row.consumers_paused
            assert isinstance(answer, Done)
            assert (answer.count, answer.is_complete) == (COUNT - moved, True)
        assert await browse(gateway.stomp_port, "a", COUNT) == list(range(COUNT))
        with OperatorClient(data) as client:
            page = client.ask(ListPurged()).answer
        assert isinstance(page, PurgedPage)
        assert not page.rows


def purged_or_pending(gateway: Path, destination: str) -> int:
    """Messages in a queue that may not be there yet."""
    with OperatorClient(gateway) as client:
        answer = client.ask(ShowDestination(destination)).answer
    return answer.row.pending if isinstance(answer, DestinationDetails) else 0


def stored(gateway: Path, destination: str) -> list[int]:
    """What is in a queue, in order, also in one that nobody is given anything of, or that is gone."""
    found: list[int] = []
    request = BrowseMessages(destination, limit=1000)
    with OperatorClient(gateway) as client:
        while True:
            page = client.ask(request).answer
            if not isinstance(page, MessagePage):  # it is not there any more
                return found
            found += [int(row.body) for row in page.rows]
            if not page.next:
                return found
            request = BrowseMessages(destination, after=page.next, limit=1000)
