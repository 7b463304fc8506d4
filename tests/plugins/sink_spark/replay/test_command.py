"""``tidegate replay``: what it says and does, against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from replay_table import row, write_delta

from tidegate.cli import main
from tidegate.operator_socket import OperatorClient
from tidegate.spi.operate import DestinationDetails, ShowDestination
from tidegate.testing.embedded import EmbeddedGateway


class Case:
    """A gateway, a table, and a configuration that names both."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.data = directory / "gateway"
        self.table = directory / "lake" / "orders"
        self.config = directory / "tidegate.toml"
        self.config.write_text(
            f'[broker]\ndata_directory = "{self.data}"\n'
            f'[[sinks]]\nplugin = "spark"\nname = "orders"\nengine = "deltalake"\ntable = "{self.table}"\n'
        )
        self._capsys = capsys

    async def run(self, *arguments: str, code: int = 0) -> str:
        """``tidegate replay``; what it printed, or its error."""
        call = ["replay", "--config", str(self.config), *arguments]
        assert await asyncio.to_thread(main, call) == code, self._capsys.readouterr()
        shown = self._capsys.readouterr()
        return " ".join((shown.err if code else shown.out).split())

    async def pending(self, queue: str) -> int:
        def ask() -> int:
            with OperatorClient(self.data) as client:
                answer = client.answer(ShowDestination(queue))
            assert isinstance(answer, DestinationDetails)
            return answer.row.pending

        return await asyncio.to_thread(ask)


@pytest.fixture
async def case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Case]:
    monkeypatch.setenv("NO_COLOR", "1")
    found = Case(tmp_path, capsys)
    write_delta(found.table, [row(n) for n in range(1, 11)] + [row(11, "queue://b")])
    async with EmbeddedGateway(data_directory=found.data):
        yield found


async def test_it_publishes_once_and_says_so(case: Case) -> None:
    assert "has published 11 messages." in await case.run()
    assert "was already complete" in await case.run()
    assert (await case.pending("queue://a"), await case.pending("queue://b")) == (10, 1)
    assert "has published 11 messages." in await case.run("--id", "again")
    assert await case.pending("queue://a") == 20
    assert "Forgot the replay again" in await case.run("--id", "again", "--forget")
    assert "Nothing is known of the replay again" in await case.run("--id", "again", "--forget")
    shown = json.loads(await case.run("--id", "again", "--json"))
    assert shown == {"replay": "again", "published": 11, "complete": True}


async def test_a_replay_of_nothing_is_not_begun(case: Case) -> None:
    """So that the same command does it when such rows have come."""
    later = ("--where", "ack_seq > 100", "--id", "later")
    for _ in range(2):
        assert (await case.run(*later)).strip() == "No row is selected, so nothing was published."
    assert json.loads(await case.run(*later, "--json"))["published"] == 0
    assert "Nothing is known of the replay later" in await case.run("--id", "later", "--forget")


async def test_rows_times_and_a_destination_are_chosen(case: Case) -> None:
    times = ("--from", "2023-11-14T22:13:25", "--to", "2023-11-14T23:13:28+01:00")
    assert "published 3" in await case.run(*times, "--to-destination", "c")
    assert "published 2" in await case.run(
        "--where", "ack_seq < 3", "--to-destination", "queue://c"
    )
    assert await case.pending("queue://c") == 5
    assert "published 1" in await case.run(
        "--table", str(case.table), "--where", "ack_seq = 1", "--rate", "100"
    )


async def test_a_dry_run_says_what_would_happen_and_changes_nothing(case: Case) -> None:
    write_delta(case.table, [row(12, "queue://b.*"), row(13, "queue://$temporary.c.x")])
    shown = await case.run("--dry-run")
    assert "queue://a 10 11" in shown
    assert "12 messages with 15b of bodies would be published" in shown
    assert "1 rows are left out" in shown
    assert "1 destinations refuse them" in shown
    found = json.loads(await case.run("--dry-run", "--json"))
    assert (found["messages"], found["body_bytes"], found["left_out"]) == (12, 15, 1)
    by = {item["destination"]: item for item in found["destinations"]}
    assert by["queue://a"] == {
        "destination": "queue://a", "messages": 10, "body_bytes": 11, "problem": "",
    }  # fmt: skip
    assert by["queue://b.*"]["problem"]
    assert "nothing was published" in await case.run(code=8)
    assert "published 11" in await case.run("--where", "destination <> 'queue://b.*'")


async def test_what_is_wrong_is_said_in_one_line(case: Case) -> None:
    wrong: list[tuple[tuple[str, str], int, str]] = [
        (("--from", "yesterday"), 2, "is not a time"),
        (
            ("--where", "x = 1"),
            8,
            "--where is not understood: Schema error: No field named x. (columns: ack_seq",
        ),
        (("--sink", "other"), 2, "there is no sink 'other'"),
        (("--engine", "duckdb"), 2, "choose spark or deltalake"),
        (("--format", "iceberg"), 2, "has an effect only with --table"),
        (("--table", "/nowhere/at/all"), 8, "there is no Delta table in /nowhere/at/all"),
        (("--id", "a/b"), 8, "not a valid request"),
    ]
    for arguments, code, said in wrong:
        assert said in await case.run(*arguments, code=code)


async def test_without_a_gateway_it_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(tmp_path, capsys)
    write_delta(case.table, [row(1)])
    assert f"no gateway is running on {case.data}" in await case.run(code=8)
