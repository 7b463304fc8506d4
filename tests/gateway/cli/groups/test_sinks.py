"""`tidegate sink` against a real gateway with a real sink."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from wire import StompClient

from tidegate.cli import main
from tidegate.cli._exit import ExitCode
from tidegate.testing.embedded import EmbeddedGateway

pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

#: Needs neither Java nor jars.
SINK = """
[[sinks]]
plugin = "spark"
name = "lake"
format = "parquet"
commit_interval = "100ms"
segment_interval = "20ms"
stop_timeout = "1s"
"""


async def acknowledge(gateway: EmbeddedGateway, *bodies: str) -> None:
    """Send each and acknowledge it."""
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SUBSCRIBE", id="s", destination="/queue/q", ack="client-individual")
    for body in bodies:
        client.send("SEND", body.encode(), destination="/queue/q")
        message = await client.receive()
        client.send("ACK", id=message.headers["ack"], receipt=body[:20])
        await client.receipt(body[:20])
    await client.aclose()


def damage(directory: Path, body: bytes) -> None:
    """Turn a bit of *body* wherever the journal has it."""
    found = 0
    for path in (directory / "journal").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if body in data:
            found += 1
            wrong = bytes([body[0] ^ 1]) + body[1:]
            path.write_bytes(data.replace(body, wrong))
    assert found


class Shell:
    """The command, on the gateway of *directory*."""

    def __init__(
        self, directory: Path, capsys: pytest.CaptureFixture[str], sinks: str = SINK
    ) -> None:
        self.config = directory / "tidegate.toml"
        self.config.write_text(f'[broker]\ndata_directory = "{directory}"\n{sinks}')
        self._capsys = capsys

    async def call(self, *arguments: str) -> tuple[int, str]:
        line = ["sink", *arguments, "--config", str(self.config)]
        code = await asyncio.to_thread(main, line)
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err

    async def json(self, *arguments: str) -> Any:
        code, out = await self.call(*arguments, "--json")
        assert code == 0, out
        return json.loads(out)

    async def until_committed(self, mark: int) -> dict[str, Any]:
        while True:
            found = await self.json("status", "lake")
            # What the table has is removed from staging a moment later, and released then.
            if found["health"]["mark"] == mark and not found["log_rows"]:
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


async def test_status_says_how_far_a_sink_is(shell: Shell, tmp_path: Path) -> None:
    async with EmbeddedGateway(SINK, data_directory=tmp_path) as gateway:
        await acknowledge(gateway, "a", "b", "c")
        async with asyncio.timeout(60):
            found = await shell.until_committed(3)
        health = found["health"]
        assert health["state"] == "running"
        assert health["is_mark_known"]
        assert health["last_commit"]["rows"] in (1, 2, 3)
        assert health["rows_per_second"] > 0
        assert health["target"].endswith("lake/acknowledged")
        assert (health["staged_files"], health["staged_rows"], health["staged_bytes"]) == (0, 0, 0)
        assert health["target_files"] >= 1
        assert health["dead_rows"] == 0
        assert (found["lag_seconds"], found["log_rows"], found["released"]) == (0, 0, 3)
        (listed,) = await shell.json("status")
        assert listed["name"] == "lake"
        code, out = await shell.call("status")
        assert code == 0
        assert out.splitlines()[2].split()[:4] == ["lake", "running", "0", "none"]
        code, out = await shell.call("status", "lake")
        assert code == 0
        assert "kept by the log" in out
        code, out = await shell.call("errors")
        assert (code, out.splitlines()[0].partition(";")[0]) == (0, "lake: no problem now")
        (proved,) = await shell.json("verify")
        assert (proved["problems"], proved["rows"], proved["mark"]) == ([], 3, 3)
        code, out = await shell.call("run")
        assert (code, "a running gateway does this itself" in out) == (
            ExitCode.STORE_LOCKED,
            True,
        )
        code, out = await shell.call("status", "sea")
        assert (code, "no sink 'sea'; there are: lake" in out) == (ExitCode.CONFIG, True)


@pytest.mark.long
async def test_verify_compares_the_table_with_the_log_of_a_gateway_that_runs_and_of_one_that_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another sink cannot get rid of the rows, so the log keeps them; one has a large body, and one is damaged later."""
    sea = tmp_path / "sinks" / "sea" / "lake"
    sea.parent.mkdir(parents=True)
    sea.write_text("in the way")
    sinks = SINK + SINK.replace('"lake"', '"sea"')
    shell = Shell(tmp_path, capsys, sinks)
    async with EmbeddedGateway(sinks, data_directory=tmp_path) as gateway, asyncio.timeout(60):
        await acknowledge(gateway, "a", "b", "the third body", "d" * (9 << 20))
        while (await shell.json("status", "lake"))["health"]["mark"] < 4:
            await asyncio.sleep(0.05)
        (proved,) = await shell.json("verify", "lake", "--content")
        assert (proved["problems"], proved["compared_log"]) == ([], 3)
        assert (proved["compared_checksum"], proved["only_hashed"]) == (1, 0)
        (proved,) = await shell.json("verify", "lake")
        assert proved["compared_log"] == 0
    (proved,) = await shell.json("verify", "lake", "--content")
    assert (proved["problems"], proved["compared_log"], proved["compared_checksum"]) == ([], 3, 1)
    damage(tmp_path, b"the third body")
    (proved,) = await shell.json("verify", "lake", "--content")
    assert (proved["problems"], proved["compared_log"], proved["compared_checksum"]) == ([], 2, 1)
    assert (proved["damaged"], proved["only_hashed"]) == (1, 1)
    assert proved["notes"][0].startswith("rows 3 are damaged in the log by now, and in the table")
    tampered = 0
    for path in (tmp_path / "sinks" / "lake" / "lake").rglob("*.parquet"):
        if "_tidegate" not in path.parts:
            rows = pq.ParquetFile(path).read()
            bodies = [b.replace(b"b", b"B") for b in rows["body"].to_pylist()]
            tampered += bodies != rows["body"].to_pylist()
            index = rows.column_names.index("body")
            pq.write_table(rows.set_column(index, "body", pa.array(bodies, pa.binary())), path)
    assert tampered == 1
    code, out = await shell.call("verify", "lake", "--content")
    assert code == 1
    assert "rows 2 are not in the table what they are in the acknowledged log" in out
    assert "damaged in the log by now" in out


@pytest.mark.long
async def test_errors_keep_what_is_over(shell: Shell, tmp_path: Path) -> None:
    lake = tmp_path / "sinks" / "lake" / "lake"
    lake.parent.mkdir(parents=True)
    lake.write_text("in the way")
    async with EmbeddedGateway(SINK, data_directory=tmp_path) as gateway, asyncio.timeout(60):
        await acknowledge(gateway, "a")
        while (found := await shell.json("status", "lake"))["health"]["state"] != "failing":
            await asyncio.sleep(0.05)
        assert found["lag_rows"] == 1
        assert found["health"]["problem"]
        assert (found["health"]["mark"], found["health"]["is_mark_known"]) == (0, False)
        assert (
            "not known yet: the job has not reported it" in (await shell.call("status", "lake"))[1]
        )
        lake.unlink()
        await shell.until_committed(1)
        (found,) = await shell.json("errors")
        assert (found["problem"], len(found["problems"]) >= 1) == ("", True)
        code, out = await shell.call("errors", "lake")
        assert code == 0
        assert found["problems"][0]["text"].split()[0] in out


async def test_verify_of_a_table_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = """
engine = "deltalake"
table = "s3a://lake/t"
[sinks.storage_options]
aws_endpoint_url = "http://127.0.0.1:9"
aws_allow_http = "true"
aws_region = "here"
aws_access_key_id = "k"
aws_secret_access_key = "s3cr3t"
max_retries = "0"
"""
    shell = Shell(tmp_path, capsys, '[[sinks]]\nplugin = "spark"\nname = "lake"' + away)
    code, out = await shell.call("verify", "sea")
    assert (code, "no sink 'sea' with plugin = 'spark'; there are: lake" in out) == (
        ExitCode.CONFIG,
        True,
    )
    code, out = await shell.call("verify")
    (line,) = out.splitlines()
    assert code == ExitCode.BROKER, "and not as if table and log did not agree"
    assert line.startswith(
        "tidegate: error: it cannot be told whether there is a table s3a://lake/t"
    )
    assert "endpoint in spark_conf, storage_options or catalog" in line
    assert "s3cr3t" not in line


async def test_without_a_gateway_it_says_so(shell: Shell) -> None:
    code, out = await shell.call("status")
    assert (code, "no gateway is running" in out) == (ExitCode.BROKER, True)


@pytest.mark.long
async def test_run_carries_what_a_gateway_left(shell: Shell, tmp_path: Path) -> None:
    lake = tmp_path / "sinks" / "lake" / "lake"
    lake.parent.mkdir(parents=True)
    lake.write_text("in the way")
    stopped = SINK.replace('stop_timeout = "1s"', "drain_on_stop = false")
    async with EmbeddedGateway(stopped, data_directory=tmp_path) as gateway:
        await acknowledge(gateway, "a", "b")
    code, out = await shell.call("run", "--timeout", "0.5")
    assert code == ExitCode.BROKER
    assert "lake is 2 rows behind" in out
    code, out = await shell.call("run", "sea")
    assert (code, "no sink 'sea'; there are: lake" in out) == (ExitCode.CONFIG, True)
    lake.unlink()
    code, out = await shell.call("run", "lake", "--timeout", "300")
    assert (code, out) == (0, "lake: everything up to row 2 is in its table\n")
    code, out = await shell.call("verify", "--content")
    assert code == 0, out
    assert "table, staged files and log agree" in out
    assert (await shell.json("verify"))[0]["log_last"] == 2
    (path,) = [
        path for path in (lake / "acknowledged").rglob("*.parquet") if "_tidegate" not in path.parts
    ]
    path.unlink()
    code, out = await shell.call("verify")
    assert code == 1
    assert "rows 1 to 2 (2 in all) are in no table" in out


def data_files(directory: Path) -> list[Path]:
    table = directory / "sinks" / "lake" / "lake" / "acknowledged"
    return list(table.glob("ack_date=*/*.parquet"))


@pytest.mark.long
async def test_compact_is_done_by_the_gateway_that_runs(shell: Shell, tmp_path: Path) -> None:
    async with EmbeddedGateway(SINK, data_directory=tmp_path) as gateway, asyncio.timeout(60):
        for number in range(1, 4):
            await acknowledge(gateway, "a")
            await shell.until_committed(number)
        code, out = await shell.call("status", "lake")
        assert "none since the start" in out
        before = len(data_files(tmp_path))
        (done,) = await shell.json("compact")
        assert done["name"] == "lake"
        assert done["upkeep"]["files_removed"] == before
        assert done["upkeep"]["problem"] == ""
        assert len(data_files(tmp_path)) == 1
        assert (await shell.json("status", "lake"))["health"]["target_files"] == 1
        code, out = await shell.call("compact", "lake")
        assert (code, " 0 files became 0 in " in out) == (0, True)
        code, out = await shell.call("verify", "--content")
        assert code == 0, out
        code, out = await shell.call("compact", "sea")
        assert (code, "no sink 'sea'; there are: lake" in out) == (ExitCode.CONFIG, True)


@pytest.mark.long
async def test_compact_without_a_gateway_does_it_by_itself(shell: Shell, tmp_path: Path) -> None:
    async with EmbeddedGateway(SINK, data_directory=tmp_path) as gateway, asyncio.timeout(60):
        for number in range(1, 4):
            await acknowledge(gateway, "a")
            await shell.until_committed(number)
    assert len(data_files(tmp_path)) == 3
    code, out = await shell.call("compact", "lake", "--timeout", "300")
    assert (code, " 3 files became 1 in " in out) == (0, True), out
    assert len(data_files(tmp_path)) == 1
    code, out = await shell.call("verify")
    assert code == 0, out
    code, out = await shell.call("compact", "sea")
    assert (code, "no sink 'sea'; there are: lake" in out) == (ExitCode.CONFIG, True)


@pytest.mark.long
async def test_a_compaction_that_fails_is_told_with_its_remedy(
    shell: Shell, tmp_path: Path
) -> None:
    plain = SINK + 'layout = "plain"\n'
    shell.config.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n{plain}')
    async with EmbeddedGateway(plain, data_directory=tmp_path) as gateway, asyncio.timeout(60):
        await acknowledge(gateway, "a")
        await shell.until_committed(1)
        code, out = await shell.call("compact")
        assert code == ExitCode.BROKER
        assert "layout 'partitioned', or set compact_interval = 0" in out
        (found,) = await shell.json("errors")
        assert "layout 'partitioned'" in found["problem"]
        await acknowledge(gateway, "b")
        await shell.until_committed(2)  # rows go on
