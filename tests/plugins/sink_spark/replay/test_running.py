"""From a table to a gateway and on: what is selected, and each message once whatever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replay_table import START_US, row, write_delta
from wire import StompClient

from tidegate.operator_socket import OperatorClient
from tidegate.spi import AccessError, RequestError
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import Answer, Done, Request
from tidegate.spi.replay import (
    AskDestinations,
    BeginReplay,
    PublishReplayed,
    Replay,
    ReplayedMessage,
    Verdicts,
)
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_sink_spark import SparkSinkOptions
from tidegate_sink_spark.replay.asking import Asking
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.running import Replayer, Told
from tidegate_sink_spark.replay.selecting import Reader, Selection, Table
from tidegate_sink_spark.replay.tables import open_table


class Gateway:
    """What of a gateway a replay sees, with faults.

    Attributes: published; room: messages that it takes before it is full, None: all; fault: called with each
        request, may raise before or (by returning True) after it was carried out.
    """

    def __init__(self) -> None:
        self.published: list[ReplayedMessage] = []
        self.replays: dict[str, Replay] = {}
        self.room: int | None = None
        self.step = 3
        self.refused: set[str] = set()
        self.requests: list[Request] = []
        self.fault: Callable[[Request], bool] = lambda _request: False

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        is_lost = self.fault(request)
        answer = self._answer(request)
        if is_lost:
            raise ClientError("the gateway went away")
        return answer

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, AskDestinations):
            return Verdicts(
                {name: f"no {name}" for name in request.destinations if name in self.refused}
            )
        if isinstance(request, BeginReplay):
            found = self.replays.get(request.replay)
            if found is None and not request.plan:
                return Replay(request.replay, "", "", is_new=True)
            if found is None:
                found = Replay(request.replay, request.plan, request.position)
                self.replays[request.replay] = found
            return found
        if isinstance(request, PublishReplayed):
            return self._publish(request)
        return Done()

    def _publish(self, request: PublishReplayed) -> Replay:
        before = self.replays[request.replay]
        if before.position != request.after or before.is_complete:
            return before
        taken = request.messages[: self.step]
        problem = ""
        if self.room is not None:
            problem = "full" if len(taken) > self.room else ""
            taken = taken[: self.room]
            self.room -= len(taken)
        self.published += taken
        is_end = len(taken) == len(request.messages)
        position = taken[-1].position if taken else before.position
        self.replays[request.replay] = Replay(
            request.replay,
            before.plan,
            request.through if is_end and request.through else position,
            before.count + len(taken),
            is_end and request.is_last,
        )
        kept = self.replays[request.replay]
        return Replay(
            kept.replay,
            kept.plan,
            kept.position,
            kept.count,
            kept.is_complete,
            problem=problem,
            kind="FlowControlError" if problem else "",
        )

    def numbers(self) -> list[int]:
        return [int(item.body) for item in self.published]


def opened(directory: Path) -> Table:
    return open_table(SparkSinkOptions(table=str(directory), engine="deltalake"), directory)


def replayer(
    gateway: Any, directory: Path, where: str = "", replay: str = "r", **more: Any
) -> Replayer:
    destination = more.pop("destination", "")
    window = more.pop("window_rows", 7)
    selection = Selection(
        where, more.pop("since", None), more.pop("until", None), keeps_destination=not destination
    )
    reader = Reader(opened(directory), selection, window)
    more.setdefault("sleep", lambda _seconds: None)
    return Replayer(
        gateway, reader, Maker("table", replay, destination), f"of {where}", batch_count=5, **more
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows 1 to 60 of one log, and 1 to 10 of an older store."""
    write_delta(tmp_path / "t", [row(n) for n in range(1, 41)])
    write_delta(tmp_path / "t", [row(n) for n in range(41, 61)])
    older = [row(n, body=str(1000 + n).encode()) for n in range(1, 11)]
    shifted = [_at(item, START_US - 100_000_000 + item.ack_sequence) for item in older]
    write_delta(tmp_path / "t", shifted, epoch="older")
    return tmp_path / "t"


def _at(item: Any, when: int) -> Any:
    return msgspec.structs.replace(item, acked_at=when)


def test_all_rows_come_in_the_order_of_their_logs(table: Path) -> None:
    gateway = Gateway()
    told: list[Told] = []
    found = replayer(gateway, table, tell=told.append).run()
    assert found.is_complete
    assert gateway.numbers() == [*range(1001, 1011), *range(1, 61)]
    assert (told[0].done, told[-1].done, told[-1].total) == (0, 70, 70)
    assert replayer(gateway, table).run().count == 70  # again: nothing
    assert len(gateway.published) == 70


def test_threads_change_quickly_while_messages_are_published_and_as_before_afterwards(
    table: Path,
) -> None:
    """The answer of the gateway must not wait until the thread that makes messages has had its 5 ms."""
    before = sys.getswitchinterval()
    gateway = Gateway()
    seen: list[float] = []

    def look(request: Request) -> bool:
        if isinstance(request, PublishReplayed) and request.messages:
            seen.append(sys.getswitchinterval())
            if len(gateway.published) > 30:
                raise ClientError("the gateway went away")
        return False

    gateway.fault = look
    with pytest.raises(ClientError):
        replayer(gateway, table).run()
    assert max(seen) < before / 10
    assert sys.getswitchinterval() == before


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("ack_seq BETWEEN 5 AND 8 AND epoch = 'e'", [5, 6, 7, 8]),
        ("headers['n'] = '9' AND epoch = 'e' -- a comment", [9]),
        ("epoch = 'e' AND ack_seq > 58 OR epoch = 'older' AND ack_seq = 1", [1001, 59, 60]),
        ("ack_seq < 0", []),
    ],
)
def test_sql_selects_rows(table: Path, where: str, numbers: list[int]) -> None:
    gateway = Gateway()
    assert replayer(gateway, table, where).run().count == len(numbers)
    assert gateway.numbers() == numbers


def test_times_select_rows_from_the_first_to_before_the_second(table: Path) -> None:
    gateway = Gateway()
    second = 1_000_000
    replayer(gateway, table, since=START_US + 5 * second, until=START_US + 8 * second).run()
    assert gateway.numbers() == [5, 6, 7]


def test_sql_that_is_wrong_is_said_in_one_line_before_anything_happens(table: Path) -> None:
    gateway = Gateway()
    for where in ("nonsense = 1", "ack_seq ==", "'", "ack_seq = 1)"):
        with pytest.raises(RequestError, match="--where is not understood"):
            replayer(gateway, table, where).run()
    assert gateway.replays == {}


def test_what_is_not_there_and_what_is_gone_is_left_out(tmp_path: Path) -> None:
    rows = [
        row(1),
        row(2, headers=(("large-body-omitted", "99"),), body=b""),
        row(3, "queue://$temporary.c.x"),
        row(4, "topic://$SYS.broker.uptime"),
        row(5, "topic://$SYSTEM"),
    ]
    write_delta(tmp_path / "t", rows)
    gateway = Gateway()
    plan = replayer(gateway, tmp_path / "t").reader.plan()
    assert (plan.rows, plan.left_out, list(plan.destinations)) == (
        2, 3, ["queue://a", "topic://$SYSTEM"],
    )  # fmt: skip
    replayer(gateway, tmp_path / "t").run()
    assert gateway.numbers() == [1, 5]
    gateway = Gateway()
    replayer(gateway, tmp_path / "t", destination="queue://b").run()
    assert gateway.numbers() == [1, 3, 4, 5]
    assert {item.destination for item in gateway.published} == {"queue://b"}


def test_a_message_that_many_acknowledged_comes_once(tmp_path: Path) -> None:
    topic = "topic://t"
    rows = [
        row(1, topic, sequence=1),
        row(2, topic, sequence=2),
        row(3, topic, sequence=1, body=b"1", subscription="b"),
        row(4, "queue://q", sequence=3),
        row(5, topic, sequence=1, body=b"1", subscription="c"),
        row(6, topic, sequence=2, body=b"2", subscription="b"),
    ]
    write_delta(tmp_path / "t", rows)
    gateway = Gateway()
    plan = replayer(gateway, tmp_path / "t", window_rows=2).reader.plan()
    assert (plan.rows, plan.repeated) == (3, 3)
    assert plan.destinations == {"queue://q": (1, 1), topic: (2, 2)}
    replayer(gateway, tmp_path / "t", window_rows=2).run()
    assert gateway.numbers() == [1, 2, 4]
    gateway = Gateway()
    replayer(gateway, tmp_path / "t", "subscription = 'b'").run()
    assert gateway.numbers() == [1, 2]  # the first that is selected


def test_rows_that_come_meanwhile_are_not_taken_nor_are_the_replayed_ones(table: Path) -> None:
    gateway = Gateway()

    def grow(request: Request) -> bool:
        if isinstance(request, PublishReplayed) and len(gateway.published) == 30:
            write_delta(table, [row(n) for n in range(61, 90)])
        return False

    gateway.fault = grow
    assert replayer(gateway, table).run().count == 70
    assert gateway.numbers()[-1] == 60


@pytest.mark.parametrize("seed", range(3))
def test_a_command_that_is_killed_at_any_request_publishes_each_message_once(
    table: Path, seed: int
) -> None:
    """Before the request came there, or before its answer was heard."""
    drawn = random.Random(seed)
    gateway = Gateway()

    def fault(_request: Request) -> bool:
        chance = drawn.random()
        if chance < 0.1:
            raise ClientError("the gateway went away")
        return chance < 0.2

    kills = 0
    while True:
        gateway.step = drawn.randint(1, 6)
        gateway.fault = fault
        try:
            found = replayer(gateway, table, window_rows=drawn.randint(1, 30)).run()
        except ClientError:
            kills += 1
            known = gateway.numbers()
            assert known == ([*range(1001, 1011), *range(1, 61)])[: len(known)]
            continue
        break
    assert (found.count, found.is_complete) == (70, True)
    assert gateway.numbers() == [*range(1001, 1011), *range(1, 61)]
    assert kills


def test_a_full_gateway_is_told_of_and_waited_for(table: Path) -> None:
    gateway = Gateway()
    gateway.room = 4
    told: list[Told] = []
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) % 3 == 0:
            gateway.room = 4

    found = replayer(gateway, table, "epoch = 'e'", tell=told.append, sleep=sleep).run()
    assert found.count == 60
    assert gateway.numbers() == list(range(1, 61))
    assert {item.waiting for item in told} == {"", "full"}
    assert max(pauses) <= 1


def test_a_connection_that_was_silent_is_made_anew(table: Path) -> None:
    """Spark may take longer than the gateway keeps one that asks nothing."""
    gateway, now = Gateway(), 0.0
    made: list[float] = []
    ended: list[float] = []

    @contextlib.contextmanager
    def connect() -> Generator[Gateway]:
        made.append(now)
        yield gateway
        ended.append(now)

    with Asking(connect, now=lambda: now) as asking:
        assert made == [0]
        for _ in range(3):
            now += 15
            asking.answer(BeginReplay("r"))
        assert made == [0]
        now += 100
        asking.answer(BeginReplay("r"))
        assert (made, ended) == ([0, 145], [145])
        assert replayer(asking, table).run().count == 70
    assert len(ended) == 2


def test_a_rate_is_kept(table: Path) -> None:
    gateway = Gateway()
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    replayer(gateway, table, rate=10, sleep=sleep, now=lambda: now).run()
    assert 6 <= now <= 7.5


def test_the_same_id_for_other_rows_is_an_error(table: Path) -> None:
    gateway = Gateway()
    replayer(gateway, table, "ack_seq = 1").run()
    with pytest.raises(RequestError, match="is of something else"):
        replayer(gateway, table, "ack_seq = 2").run()


def test_nothing_is_published_when_one_destination_is_refused(tmp_path: Path) -> None:
    write_delta(tmp_path / "t", [row(1), row(2, "queue://secret")])
    gateway = Gateway()
    gateway.refused = {"queue://secret"}
    with pytest.raises(AccessError, match=r"1 of 2 destinations.*no queue://secret"):
        replayer(gateway, tmp_path / "t").run()
    assert (gateway.published, gateway.replays) == ([], {})


def test_windows_are_as_wide_as_the_rows_are_few(tmp_path: Path) -> None:
    """Each row in one window, and no more of them than that takes."""
    numbers = [*range(1, 41), 1000, 100_000, *range(200_000, 200_030), 5_000_000]
    write_delta(tmp_path / "t", [row(n) for n in numbers])
    gateway = Gateway()
    made = replayer(gateway, tmp_path / "t", window_rows=10)
    windows = [
        w.rows["ack_seq"].to_pylist() for w in made.reader.windows(made.reader.plan().logs, 0, 0)
    ]
    assert [number for window in windows for number in window] == numbers
    assert max(map(len, windows)) <= 10
    assert windows[:4] == [list(range(first, first + 10)) for first in (1, 11, 21, 31)]
    assert len(windows) < 20


def test_large_bodies_are_read_few_at_a_time(tmp_path: Path) -> None:
    rows = [row(n, body=b"%d" % n + b" " * (1 << 20)) for n in range(1, 20)]
    write_delta(tmp_path / "t", rows)
    gateway = Gateway()
    made = replayer(gateway, tmp_path / "t", window_rows=50_000)
    read: list[int] = []
    query = made.reader.table.query

    def counted(sql: str) -> Any:
        found = query(sql)
        if "body" in found.column_names:
            read.append(found.num_rows)
        return found

    made.reader.table.query = counted  # type: ignore[method-assign]  # only watched
    made.run()
    assert gateway.numbers() == list(range(1, 20))
    sizes = [
        sum(len(m.body) for m in r.messages)
        for r in gateway.requests
        if isinstance(r, PublishReplayed)
    ]
    assert max(sizes) < 2 << 20
    assert read == [19]


async def test_a_gateway_gets_all_of_it_and_consumers_see_it_as_it_was_sent(
    tmp_path: Path,
) -> None:
    rows = [
        row(
            n,
            headers=(("k", "a"), ("k", "b"), ("n", str(n))),
            body=b"body\0%d" % n,
            content_type="text/x",
            correlation_data=b"c-1",
            reply_to="queue://answers",
            priority=7,
        )
        for n in range(1, 1201)
    ]
    write_delta(tmp_path / "t", rows)
    async with EmbeddedGateway(data_directory=tmp_path / "gateway") as gateway:

        def run() -> Replay:
            with OperatorClient(tmp_path / "gateway") as client:
                made = replayer(client, tmp_path / "t", window_rows=500)
                made.batch_count = 300
                return made.run()

        assert (await asyncio.to_thread(run)).count == 1200
        client = await StompClient.connect(gateway.port("stomp"))
        client.send("SUBSCRIBE", id="s", destination="/queue/a")
        for number in range(1, 1201):
            frame = await client.receive()
            assert frame.body == b"body\0%d" % number
            wanted = {
                "k": "a",
                "n": str(number),
                "content-type": "text/x",
                "correlation-id": "c-1",
                "reply-to": "/queue/answers",
                "priority": "7",
                "replayed-ack-seq": str(number),
            }
            assert {name: frame.headers.get(name) for name in wanted} == wanted
        client.close()
        assert (await asyncio.to_thread(run)).count == 1200  # again: nothing
