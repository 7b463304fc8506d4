"""Rows of the acknowledged log for who looks at it: whole, bounded, whatever is wrong, and only for who may."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from acknowledged import Log, acknowledge
from broker_harness import Broker
from large_fakes import FakeBodies

from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.broker.operate.log_rows import log_rows
from tidegate.broker.operate.operations import Operations
from tidegate.config import BrokerConfig
from tidegate.spi import (
    AccessError,
    AcknowledgedMessage,
    AcknowledgedPage,
    Action,
    AuditEvent,
    CorruptRecordError,
    Identity,
    LargeBody,
    Message,
    RequestError,
    StoreCapabilities,
    Verdict,
)
from tidegate.spi.operate import LOG_BODY_MAX, LogRows, ReadLog, perform

ME = Identity("local:me", frozenset(), "", "", "operator")


class Rows:
    """A store's log of *messages*; released while it is read, or damaged, as it is told."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.first = 1
        self.damaged: set[int] = set()
        self.released_meanwhile = 0
        self.asked: list[tuple[int, int]] = []

    def log_statistics(self) -> Any:
        return SimpleNamespace(first=self.first, last=len(self.messages))

    async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
        assert bytes_max <= 1 << 20
        self.asked.append((after, limit))
        if self.released_meanwhile:
            self.first, self.released_meanwhile = self.released_meanwhile + 1, 0
        if after < self.first - 1:
            raise RequestError("released")
        numbers = range(after + 1, min(after + limit, len(self.messages)) + 1)
        if bad := self.damaged & set(numbers):
            raise CorruptRecordError("wrong checksum", location=f"row {min(bad)}")
        return AcknowledgedPage(
            [AcknowledgedMessage(n, n, self.messages[n - 1], 1, 0, 0, "", "", "") for n in numbers],
            len(self.messages),
        )


def log_of(rows: Rows, bodies: FakeBodies | None = None) -> AcknowledgedLog:
    capabilities = StoreCapabilities(
        True, acknowledged_log=cast(Any, rows), large_bodies=bodies or FakeBodies()
    )
    return AcknowledgedLog(cast(Any, SimpleNamespace(capabilities=capabilities)), BrokerConfig())


async def read(log: AcknowledgedLog, after: int = 0, limit: int = 1000) -> LogRows:
    return await log_rows(log, ReadLog(after, limit))


async def all_of(log: AcknowledgedLog) -> list[bytes]:
    """As who follows ``through`` reads it."""
    found: list[bytes] = []
    after = 0
    while (page := await read(log, after)).through > after:
        found += [row.message.body for row in page.rows]
        after = page.through
    return found


def small(count: int) -> list[Message]:
    return [Message("queue://q", b"%d" % n) for n in range(1, count + 1)]


async def test_rows_come_page_by_page_until_the_log_ends() -> None:
    log = log_of(Rows(small(5)))
    page = await read(log, 1, 2)
    assert ([row.ack_sequence for row in page.rows], page.through) == ([2, 3], 3)
    page = await read(log, 5)
    assert (page.rows, page.through) == ((), 5)
    assert await all_of(log) == [b"1", b"2", b"3", b"4", b"5"]


async def test_rows_that_were_released_are_passed_over_also_in_that_moment() -> None:
    rows = Rows(small(5))
    rows.first = 3
    assert [row.ack_sequence for row in (await read(log_of(rows))).rows] == [3, 4, 5]
    rows.released_meanwhile = 4
    assert [row.ack_sequence for row in (await read(log_of(rows), 2)).rows] == [5]


async def test_a_request_that_the_store_refuses_otherwise_is_refused() -> None:
    class Refusing(Rows):
        async def acknowledged(self, after: int, limit: int, bytes_max: int) -> AcknowledgedPage:
            raise RequestError("no")

    with pytest.raises(RequestError):
        await read(log_of(Refusing(small(2))))


async def test_a_damaged_row_is_named_and_no_other_left_out() -> None:
    rows = Rows(small(6))
    rows.damaged = {1, 4}
    log = log_of(rows)
    assert await all_of(log) == [b"2", b"3", b"5", b"6"]
    page = await read(log, 3)
    assert (page.rows, page.through) == ((), 4)
    (damaged,) = page.damaged
    assert damaged.ack_sequence == 4
    assert "wrong checksum" in damaged.problem
    assert (await read(log, 4)).damaged == ()


async def test_a_large_body_comes_alone_and_of_one_that_is_too_large_what_it_is() -> None:
    bodies = FakeBodies()
    one, two, three = small(3)
    large = Message("queue://q", b"", large=bodies.holding(b"large"))
    handle = LargeBody("k9", LOG_BODY_MAX + 1, 77)
    too_large = Message("queue://q", b"", large=handle)
    log = log_of(Rows([one, large, two, too_large, large, three]), bodies)
    assert [len((await read(log, after)).rows) for after in range(6)] == [1] * 6
    assert await all_of(log) == [b"1", b"large", b"2", b"", b"large", b"3"]
    assert (await read(log, 3)).rows[0].message == too_large
    assert all(reader.is_closed for reader in bodies.readers)
    assert len(bodies.readers) == 4, "and it was not read"


async def test_a_body_that_no_sink_takes_is_left_out_as_they_have_it() -> None:
    handle = LargeBody("k9", BrokerConfig().acknowledged_body_max + 1)
    log = log_of(Rows([Message("queue://q", b"", large=handle)]))
    (row,) = (await read(log)).rows
    assert row.message.large is None
    assert row.message.headers == (("large-body-omitted", str(handle.size)),)


class Guard:
    """Lets operators do what it is told."""

    def __init__(self, *allowed: Action) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Action, str]] = []

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        if identity.protocol != "operator":
            return Verdict.ALLOW
        self.asked.append((action, destination))
        return Verdict.ALLOW if action in self.allowed else Verdict.DENY

    def audit(self, event: AuditEvent) -> None: ...


async def test_who_may_not_browse_a_destination_does_not_read_its_rows() -> None:
    for allowed in ((Action.ADMIN, Action.BROWSE), (Action.ADMIN,), (Action.BROWSE,)):
        guard = Guard(*allowed)
        async with Log(extensions=[guard]) as broker:
            broker.core.acknowledged_log.reader("sink")
            await acknowledge(broker, "a", "b")
            if len(allowed) == 1:
                with pytest.raises(AccessError):
                    await perform(Operations(broker.core), ME, ReadLog())
                continue
            found = await perform(Operations(broker.core), ME, ReadLog(1))
            assert isinstance(found, LogRows)
            assert [row.message.body for row in found.rows] == [b"b"]
            assert guard.asked == [
                (Action.ADMIN, ""),
                (Action.ADMIN, ""),
                (Action.BROWSE, "queue://q"),
            ]


async def test_without_sinks_there_is_no_log() -> None:
    async with Broker() as broker:
        with pytest.raises(RequestError, match="no sinks"):
            await perform(Operations(broker.core), ME, ReadLog())
