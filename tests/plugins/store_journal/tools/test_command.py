"""`tidegate journal`, as its users meet it: beside a running gateway and offline."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from journal_kit import KB, data_files, opened, write
from numbered import ack, add
from series_kit import add as series_add
from series_kit import series_store, size_of

from tidegate.cli import main
from tidegate.spi import AddDestination, PutSubscription, Subscription

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `tidegate journal …` in this process."""

    def tidegate(*arguments: object) -> tuple[int, str, str]:
        code = main(["journal", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return tidegate


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    store, _ = await opened(tmp_path, journal_max_file_length=64 * KB)
    await write(
        store,
        AddDestination("queue://orders", 1),
        PutSubscription(Subscription(2, "laptop", "news", "topic://news.>", True)),
    )
    for sequence in range(1, 40):
        await write(store, add(sequence, 1, 2, size=5000))
    await write(store, ack(*range(3, 40)), ack(*range(2, 40), pending_list=2))
    await store.close()
    return tmp_path / "journal"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as running:
        at = f"stomp://127.0.0.1:{running.stomp_port}"
        assert main(["stomp", "send", "/queue/kept", "body", "-n", "20", "--url", at]) == 0
        yield running
        assert running.stop() == 0, running.tail()


def columns(line: str) -> list[str]:
    return line.split()


def test_inspect_shows_files_and_lists(call: Call, journal: Path) -> None:
    code, out, _ = call("inspect", "--directory", journal)
    assert code == 0
    assert out.startswith(f"{journal}: store ")
    lines = out.splitlines()
    file, records = [line for line in lines if line.startswith("journal-0000000001.data")]
    assert columns(file)[1:4] == ["1", "used", "65536"]
    assert columns(records)[1].startswith("1-")
    assert "1 add destination" in records
    orders = next(line for line in lines if "queue://orders" in line)
    assert columns(orders) == ["1", "queue", "queue://orders", "2", "10000", "1", "0"]
    assert "durable subscription" in out
    counters = next(line for line in lines if line.startswith("metadata store: "))
    assert columns(counters)[3] == "checkpoints;"
    assert int(columns(counters)[2]) > 0


def test_inspect_gives_machines_the_same(call: Call, journal: Path) -> None:
    found = json.loads(call("inspect", "-d", journal, "--json")[1])
    file = found["files"][0]
    assert (file["name"], file["file_id"], file["state"]) == ("journal-0000000001.data", 1, "used")
    assert 0 < file["live_share"] < 1
    assert file["records"]["add"] > 5
    assert file["batches"][0] == 1
    assert found["lists"][0]["messages"] == 2
    fast = json.loads(call("inspect", "-d", journal, "--json", "--no-records")[1])
    assert "records" not in fast["files"][0]


def test_verify_says_what_it_read_and_that_all_is_well(call: Call, journal: Path) -> None:
    code, out, _ = call("verify", "-d", journal)
    assert code == 0
    assert out.splitlines()[-1] == "no damage found"
    found = json.loads(call("verify", "-d", journal, "--json")[1])
    assert (found["damaged"], found["damages"], found["references"]) == (False, [], 3)


def test_verify_names_damage_and_ends_with_code_1(call: Call, journal: Path) -> None:
    path = data_files(journal.parent)[0]
    data = bytearray(path.read_bytes())
    data[4096 + 100] ^= 1
    path.write_bytes(data)
    code, out, _ = call("verify", "-d", journal)
    assert code == 1
    damage = next(line for line in out.splitlines() if line.startswith("journal-0000000001.data"))
    assert columns(damage)[1] == "4096"
    code, out, _ = call("verify", "-d", journal, "--json")
    assert code == 1
    assert json.loads(out)["damages"][0]["offset"] == 4096


def test_why_names_destination_list_and_messages(call: Call, journal: Path) -> None:
    for arguments in (
        ("journal-0000000001.data", "-d", journal),
        (journal / "journal-0000000001.data",),
    ):
        code, out, _ = call("why", *arguments)
        assert code == 0
        assert "queue queue://orders (list 1): messages 1, 2 (2, " in out
        assert "durable subscription topic://news.> client laptop name news (list 2)" in out
    found = json.loads(call("why", journal / "journal-0000000001.data", "--json")[1])
    assert [holder["pending_list"] for holder in found["holders"]] == [1, 2]
    code, _, err = call("why", "journal-0000000099.data", "-d", journal)
    assert code == 5
    assert "has no data file journal-0000000099.data; it has: journal-" in err


def test_compact_prints_before_and_after(call: Call, journal: Path) -> None:
    found = json.loads(call("compact", "-d", journal, "--delete-free", "--json")[1])
    assert found["after"]["files"] < found["before"]["files"]
    code, out, _ = call("compact", "-d", journal)
    assert code == 0
    assert [columns(line)[0] for line in out.splitlines()[2:]] == ["before", "after"]
    assert call("verify", "-d", journal)[0] == 0


def test_rebuild_index_says_what_it_found(call: Call, journal: Path) -> None:
    code, out, _ = call("rebuild-index", "-d", journal)
    assert code == 0
    assert out.endswith("2 pending messages, 1 destinations, 1 subscriptions\n")
    found = json.loads(call("rebuild-index", "-d", journal, "--json")[1])
    assert found["pending_messages"] == 2


def test_export_and_import_carry_everything(call: Call, journal: Path, tmp_path: Path) -> None:
    code, out, _ = call("export", tmp_path / "out", "-d", journal)
    assert code == 0
    assert ["messages", "2"] in [columns(line) for line in out.splitlines()]
    target = tmp_path / "other" / "journal"
    code, out, _ = call("import", tmp_path / "out", "-d", target, "--json")
    assert code == 0
    assert json.loads(out)["pending_references"] == 3
    lists = json.loads(call("inspect", "-d", target, "--json")[1])["lists"]
    assert [(item["destination"], item["messages"]) for item in lists] == [
        ("queue://orders", 2),
        ("topic://news.>", 1),
    ]
    code, _, err = call("import", tmp_path / "out", "-d", target)
    assert code == 2
    assert "the store is not empty" in err


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["verify"], ["why", "x"], ["compact"], ["rebuild-index"], ["export", "out"]],
    ids=lambda command: command[0],
)
def test_a_place_that_is_no_journal_is_an_error_and_stays_as_it_is(
    call: Call, tmp_path: Path, command: list[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = call(*command, "-d", empty)
    assert (code, out) == (2, "")
    assert "is not a journal" in err
    assert list(empty.iterdir()) == []


# ---------------------------------------------------------------------- beside a running gateway


def test_read_only_commands_work_beside_a_running_gateway(
    call: Call, gateway: GatewayProcess
) -> None:
    config = ("--config", gateway.config)
    lists = json.loads(call("inspect", *config, "--json")[1])["lists"]
    assert [(item["destination"], item["messages"]) for item in lists] == [("queue://kept", 20)]
    code, out, err = call("verify", *config)
    assert (code, err) == (0, "")
    assert "no damage found" in out
    assert "queue://kept" in call("why", "journal-0000000001.data", *config)[1]


@pytest.mark.parametrize(
    "command", [["compact"], ["rebuild-index"], ["export", "out"], ["import", "in"]]
)
def test_the_others_say_that_the_gateway_must_be_stopped(
    call: Call, gateway: GatewayProcess, journal: Path, tmp_path: Path, command: list[str]
) -> None:
    arguments = [str(tmp_path / one) if one in ("out", "in") else one for one in command]
    if command[0] == "import":
        assert call("export", str(tmp_path / "in"), "-d", str(journal))[0] == 0
    code, _, err = call(*arguments, "--config", gateway.config)
    assert code == 4
    assert "is in use by a running gateway" in err
    assert "stop it first" in err
    assert not (tmp_path / "out").exists()


def test_nobody_reads_the_output_to_its_end_is_no_error(journal: Path) -> None:
    for arguments in (["inspect"], ["verify", "--json"], ["inspect", "--json"]):
        command = [sys.executable, "-m", "tidegate", "journal", *arguments, "-d", str(journal)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
            assert process.wait(60) == 0


# ------------------------------------------------------------------------------------- presets

FIRST_FILES = {
    "kahadb": "db-1.log",
    "amq": "journal/data-1",
    "artemis": "journal/activemq-data-1.amq",
}


@pytest.fixture(params=FIRST_FILES)
async def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A journal with the names of a preset: the preset, and where it is."""
    preset = str(request.param)

    store, _ = await opened(
        tmp_path, preset=preset, directory="kept", journal_max_file_length=64 * KB
    )
    await write(store, AddDestination("queue://orders", 1))
    for sequence in range(1, 60):
        await write(store, add(sequence, size=5000))
    await write(store, ack(*range(3, 59)))
    await store.close()
    return preset, tmp_path / "kept"


def test_every_command_finds_the_files_of_a_preset(
    call: Call, named: tuple[str, Path], tmp_path: Path
) -> None:
    preset, place = named
    first = place / FIRST_FILES[preset]
    found = json.loads(call("inspect", "-d", place, "--json")[1])
    assert found["files"][0]["name"] == first.name
    assert found["files"][0]["records"]["add"] > 5
    assert found["counters"]["checkpoints"] > 0
    verified = json.loads(call("verify", "-d", place, "--json")[1])
    assert (verified["damages"], verified["references"]) == ([], 3)
    assert verified["files"] == sum(file["state"] != "free" for file in found["files"])
    for arguments in ((first,), (first.name, "-d", place)):
        code, out, _ = call("why", *arguments)
        assert (code, out.splitlines()[0].split(":")[0]) == (0, first.name)
        assert "queue queue://orders (list 1): messages 1, 2 (2, " in out
    compacted = json.loads(call("compact", "-d", place, "--delete-free", "--json")[1])
    assert compacted["after"]["files"] < compacted["before"]["files"]
    assert compacted["before"]["disk_bytes"] > 5 * 64 * KB
    code, out, err = call("rebuild-index", "-d", place)
    assert (code, err) == (0, "")
    assert out.endswith("3 pending messages, 1 destinations, 0 subscriptions\n")
    assert call("export", tmp_path / "out", "-d", place)[0] == 0
    config = tmp_path / "tidegate.toml"
    config.write_text(
        f'[broker]\ndata_directory = "{tmp_path / "new"}"\n[store]\npreset = "{preset}"\n'
        'directory = "again"\njournal_max_file_length = "64kb"\n'
    )
    code, out, err = call("import", tmp_path / "out", "--config", config)
    assert (code, err) == (0, "")
    assert (tmp_path / "new" / "again" / FIRST_FILES[preset]).is_file()
    assert call("verify", "--config", config)[0] == 0
    # Nothing was made under other names on the way.
    assert not list(tmp_path.rglob("journal-*.*"))
    assert not list(tmp_path.rglob("metadata.before"))


def test_damage_and_missing_files_are_called_as_the_preset_calls_them(
    call: Call, named: tuple[str, Path]
) -> None:
    preset, place = named
    first = place / FIRST_FILES[preset]
    data = bytearray(first.read_bytes())
    data[4096 + 100] ^= 1
    first.write_bytes(data)
    code, out, _ = call("verify", "-d", place, "--json")
    assert code == 1
    assert json.loads(out)["damages"][0]["file"] == first.name
    first.unlink()
    code, out, _ = call("verify", "-d", place, "--json")
    assert code == 1
    assert {damage["file"] for damage in json.loads(out)["damages"]} == {first.name}


# ------------------------------------------------------------------------- one destination


@pytest.fixture
async def split(tmp_path: Path) -> Path:
    """A journal with a directory for each destination, most of one of them dead."""
    store = await series_store(tmp_path)
    await write(store, AddDestination("queue://q", 1))
    await write(store, *(series_add(sequence, size=2000) for sequence in range(1, 101)))
    await write(store, ack(*range(3, 101)))
    await store.close()
    return tmp_path / "journal"


def test_one_destination_is_compacted_and_its_bytes_are_printed(call: Call, split: Path) -> None:
    before = size_of(split.parent)
    code, out, err = call("compact", "-d", split, "--destination", "queue://q")
    assert (code, err) == (0, "")
    after = size_of(split.parent)
    assert columns(out.splitlines()[-1]) == ["queue://q", "2", str(before), str(after)]
    assert after < before / 10
    again = json.loads(call("compact", "-d", split, "--destination", "queue://q", "--json")[1])
    assert again == {
        "destination": "queue://q",
        "messages": 2,
        "bytes_before": after,
        "bytes_after": after,
    }
    assert call("verify", "-d", split)[0] == 0


def test_a_destination_without_a_directory_is_an_error_that_names_those_there_are(
    call: Call, split: Path
) -> None:
    code, out, err = call("compact", "-d", split, "--destination", "queue://other")
    assert (code, out) == (5, "")
    assert "queue://other has no directory in" in err
    assert "there are: queue#q" in err


@pytest.mark.parametrize(
    "other", [["--below", "10"], ["--delete-free"]], ids=lambda other: other[0]
)
def test_a_destination_goes_with_no_option_about_data_files(
    call: Call, split: Path, other: list[str]
) -> None:
    code, out, err = call("compact", "-d", split, "--destination", "queue://q", *other)
    assert (code, out) == (2, "")
    assert "combined with --below or --delete-free" in err


async def test_a_destination_is_not_compacted_beside_a_gateway(call: Call, split: Path) -> None:
    async def scenario() -> tuple[int, str, str]:
        store = await series_store(split.parent)
        try:
            return await asyncio.to_thread(
                call, "compact", "-d", split, "--destination", "queue://q"
            )
        finally:
            await store.close()

    code, out, err = await scenario()
    assert (code, out) == (4, "")
    assert "stop it first" in err
