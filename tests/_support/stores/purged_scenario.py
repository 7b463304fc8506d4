"""What an operator purges by number and by group, and takes back, over restarts of the gateway on any store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TypeVar

from wire import StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import (
    Answer,
    BrowseMessages,
    CountDeadLetters,
    DeadLetterGroups,
    Done,
    ListPurged,
    MessagePage,
    PurgeDestination,
    PurgedPage,
    Request,
    UndoPurge,
)
from tidegate.testing.embedded import EmbeddedGateway

A = "queue://a"
_AnswerT = TypeVar("_AnswerT", bound=Answer)


async def _ask(directory: Path, request: Request, kind: type[_AnswerT]) -> _AnswerT:
    def ask() -> object:
        with OperatorClient(directory) as client:
            return client.answer(request)

    answer = await asyncio.to_thread(ask)
    assert isinstance(answer, kind)
    return answer


async def _browsed(directory: Path, queue: str) -> dict[int, int]:
    """What each message has in it, by its number."""
    page = await _ask(directory, BrowseMessages(queue), MessagePage)
    return {int(row.body): row.sequence for row in page.rows}


async def purged_and_undone(directory: Path, config: str) -> None:
    """Args: config: of the store. Raises: AssertionError."""
    until = time.time_ns() // 1000 + 3_600_000_000
    async with EmbeddedGateway(config, data_directory=directory) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        for number in range(8):
            # As dead letters have it.
            why = {"dead-letter-reason": "odd" if number % 2 else "even"}
            body = b"%d" % number
            client.send("SEND", body, destination="/queue/a", receipt=str(number), **why)
            await client.receipt(str(number))
        await client.aclose()
        there = await _browsed(directory, A)
        chosen = PurgeDestination(A, keep_until=until, sequences=(there[2], there[5], there[6]))
        assert (await _ask(directory, chosen, Done)).count == 3
        groups = (await _ask(directory, CountDeadLetters(A), DeadLetterGroups)).groups
        (selector,) = [group.selector for group in groups if group.reason == "odd"]
        assert selector is not None
        group = PurgeDestination(A, selector, keep_until=until + 1)
        assert (await _ask(directory, group, Done)).count == 3
        assert list(await _browsed(directory, A)) == [0, 4]
    async with EmbeddedGateway(config, data_directory=directory):
        rows = (await _ask(directory, ListPurged(), PurgedPage)).rows
        assert [(row.until, row.destination, row.pending) for row in rows] == [
            (until + 1, A, 3),
            (until, A, 3),
        ]
        kept = [await _browsed(directory, row.kept) for row in rows]
        assert [list(found) for found in kept] == [[1, 3, 7], [2, 5, 6]]
        some = UndoPurge(rows[1].kept, sequences=(kept[1][2], kept[1][6]))
        assert (await _ask(directory, some, Done)).count == 2
        assert (await _ask(directory, UndoPurge(rows[0].kept), Done)).count == 3
    async with EmbeddedGateway(config, data_directory=directory):
        assert list(await _browsed(directory, A)) == [0, 4, 2, 6, 1, 3, 7]
        (row,) = (await _ask(directory, ListPurged(), PurgedPage)).rows
        assert list(await _browsed(directory, row.kept)) == [5]
