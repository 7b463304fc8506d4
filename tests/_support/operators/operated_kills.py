"""A gateway that is killed while an operator moves, takes back or purges messages, for good or not, and clients publish more.

The oracle: what was confirmed is in exactly one place, or purged in order; nothing is there twice, or that nobody
sent; queues keep the order in which one producer sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway_process import GatewayProcess
from wire import StompClient

from tidegate.broker.purged import kept_name
from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    BrowseMessages,
    CreateDestination,
    Done,
    Lengthy,
    MessagePage,
    MoveMessages,
    PurgeDestination,
    RetryMessages,
    UndoPurge,
)

FROM, TO = "queue://from", "queue://to"
#: Until when a purge keeps what it takes: longer than a test lasts.
UNTIL = time.time_ns() // 1000 + 86_400_000_000
KEPT = kept_name(FROM, UNTIL)
REQUESTS: dict[str, Lengthy] = {
    "move": MoveMessages(FROM, TO),
    "retry": RetryMessages(FROM),
    "purge": PurgeDestination(FROM),
    # A group of dead letters.
    "keep": PurgeDestination(FROM, "\"dead-letter-reason\" = 'odd'", keep_until=UNTIL),
}
#: What dead-lettering writes: where a message comes from.
HEADERS = {"original_destination": TO}
#: Messages that are there before each kill: a request takes some steps for them.
BATCH = 3000
LOST = (OSError, EOFError, AssertionError, asyncio.IncompleteReadError)


@dataclass
class Sent:
    """What a producer knows. Attributes: count: how many it sent; confirmed: how many the gateway has confirmed."""

    count: int = 0
    confirmed: set[int] = field(default_factory=set)

    async def send(self, port: int, enough: Callable[[int], bool]) -> None:
        """Numbers, until *enough* of how many were confirmed here, or the gateway is gone."""
        with contextlib.suppress(*LOST):
            client = await StompClient.connect(port)
            try:
                done = 0
                while not enough(done):
                    first = self.count
                    for number in range(first, first + 50):
                        receipt = {"receipt": str(number)} if number == first + 49 else {}
                        body = str(number).encode()
                        why = {"dead-letter-reason": "odd" if number % 2 else "even"}
                        client.send(
                            "SEND", body, destination="/queue/from", **HEADERS, **why, **receipt
                        )
                    self.count = first + 50
                    await client.receipt(str(first + 49))
                    self.confirmed.update(range(first, first + 50))
                    done += 50
            finally:
                client.close()


def content(directory: Path, queue: str, selector: str = "") -> list[int]:
    """All of it, in order; of a queue that is not there nothing."""
    found: list[int] = []
    after = 0
    with OperatorClient(directory) as client:
        while True:
            request = BrowseMessages(queue, selector, after=after, limit=1000)
            page = client.ask(request).answer
            if page is None and queue == KEPT:
                return found
            assert isinstance(page, MessagePage)
            found += [int(row.body) for row in page.rows]
            after = page.next
            if not after:
                return found


def begin(directory: Path, request: Lengthy) -> threading.Thread:
    """Ask, and do not mind that there is no answer."""

    def ask() -> None:
        with contextlib.suppress(OSError, EOFError), OperatorClient(directory) as client:
            client.ask(request)

    asking = threading.Thread(target=ask)
    asking.start()
    return asking


async def killed_again_and_again(
    directory: Path, store: str, what: str, kills: int, seed: int
) -> None:
    """Raises: AssertionError."""
    chance, sent, data = random.Random(seed), Sent(), directory / "data"
    request, in_the_middle = REQUESTS[what], 0
    target = KEPT if what == "keep" else TO
    with GatewayProcess(directory, extra=f'[store]\nplugin = "{store}"\n') as gateway:
        with OperatorClient(data) as client:
            for queue in (FROM, TO):
                assert client.ask(CreateDestination(queue)).error is None
        for _ in range(kills):
            await sent.send(gateway.stomp_port, lambda done: done >= BATCH)
            before = await asyncio.to_thread(content, data, FROM, request.selector)
            publishing = asyncio.create_task(sent.send(gateway.stomp_port, lambda _: False))
            asking = await asyncio.to_thread(begin, data, request)
            await asyncio.to_thread(until_begun, data, FROM, before[0], request.selector)
            began = sent.count  # a purge takes what was there when it began, and no more
            await asyncio.sleep(chance.uniform(0, 0.05))
            await asyncio.to_thread(gateway.kill)
            await publishing
            await asyncio.to_thread(asking.join)
            await asyncio.to_thread(gateway.start)
            left, there = [
                await asyncio.to_thread(content, data, queue) for queue in (FROM, target)
            ]
            in_the_middle += before[-1] in left
            check(sent, what, left, there, began)
            print(f"{what} store={store} sent={sent.count} left={len(left)} there={len(there)}")
        with OperatorClient(data) as client:
            answer = await asyncio.to_thread(client.answer, request)
        assert isinstance(answer, Done)
        assert answer.is_complete
        left, there = [await asyncio.to_thread(content, data, queue) for queue in (FROM, target)]
        if what == "keep":
            assert not [number for number in left if number % 2]
        else:
            assert left == []
        if what != "purge":
            assert sent.confirmed <= set(left) | set(there)
            assert there == sorted(set(there))
        if what == "keep":
            await undone(gateway, data, left, there, chance)
        assert gateway.stop() == 0, gateway.tail()
    print(f"{what} store={store} kills={kills} in_the_middle={in_the_middle}")


async def undone(
    gateway: GatewayProcess, data: Path, left: list[int], kept: list[int], chance: random.Random
) -> None:
    """Take back what a purge has kept, with a kill in the midst of it. Args: left, kept: what is where."""
    request = UndoPurge(KEPT)
    asking = await asyncio.to_thread(begin, data, request)
    await asyncio.to_thread(until_begun, data, KEPT, kept[0], "")
    await asyncio.sleep(chance.uniform(0, 0.05))
    await asyncio.to_thread(gateway.kill)
    await asyncio.to_thread(asking.join)
    await asyncio.to_thread(gateway.start)
    back, still = [await asyncio.to_thread(content, data, queue) for queue in (FROM, KEPT)]
    assert back + still == left + kept
    if still:
        with OperatorClient(data) as client:
            answer = await asyncio.to_thread(client.answer, request)
        assert isinstance(answer, Done)
        assert (answer.count, answer.is_complete) == (len(still), True)
    assert await asyncio.to_thread(content, data, FROM) == left + kept
    print(f"undo kept={len(kept)} still={len(still)}")


def until_begun(directory: Path, queue: str, first: int, selector: str) -> None:
    """Until the first message has left the queue; the test's own limit ends it."""
    while True:
        with OperatorClient(directory) as client:
            page = client.ask(BrowseMessages(queue, selector, limit=1)).answer
        if page is None and queue == KEPT:
            return
        assert isinstance(page, MessagePage)
        if not page.rows or int(page.rows[0].body) != first:
            return
        time.sleep(0.001)


def check(sent: Sent, what: str, left: list[int], there: list[int], began: int) -> None:
    """Args: left, there: in the one queue and the other; began: sent when the request had begun."""
    for found in (left, there):
        assert found == sorted(set(found)), "out of order, or twice"
    assert not set(left) & set(there), "in both"
    assert set(left) | set(there) <= set(range(sent.count)), "nobody sent this"
    gone = sent.confirmed - set(left) - set(there)
    if what != "purge":
        assert not gone, f"lost: {sorted(gone)[:10]}"
        if what == "keep":
            assert all(number % 2 for number in there), "nobody asked for this one"
    else:
        assert there == []
        assert all(number < began for number in gone), "purged, although it came later"
        assert not left or all(number < left[0] for number in gone), "purged out of order"
