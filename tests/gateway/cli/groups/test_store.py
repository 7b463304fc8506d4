"""`tidegate store export|import` from one store to another, as configured."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.cli import main
from tidegate.spi import (
    AddDestination,
    AddMessage,
    Message,
    StoreContext,
    WriteBatch,
    parse_options,
)
from tidegate.testing._harness import plugin_factory, run_scenario

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def tidegate(*arguments: object) -> tuple[int, str, str]:
        code = main(["store", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return tidegate


def config(directory: Path, plugin: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "tidegate.toml"
    path.write_text(
        f'[broker]\ndata_directory = "{directory / "data"}"\n[store]\nplugin = "{plugin}"\n'
    )
    return path


def fill(directory: Path) -> None:
    factory = plugin_factory("store-journal", "register_message_store")

    async def scenario() -> None:
        context = StoreContext(directory / "data", "test")
        store = factory.create(context, parse_options(factory.options_type, {}))  # type: ignore[attr-defined]
        await store.open()
        adds = [AddMessage(n, Message("queue://q", b"%d" % n), (1,)) for n in range(1, 101)]
        await store.write(WriteBatch([AddDestination("queue://q", 1), *adds]))
        await store.close()

    run_scenario(scenario())


def test_from_the_journal_to_sql_and_back(call: Call, tmp_path: Path) -> None:
    journal = config(tmp_path / "a", "journal")
    sql = config(tmp_path / "b", "jdbc")
    fill(tmp_path / "a")
    code, out, err = call("export", tmp_path / "out", "--config", journal)
    assert (code, err) == (0, "")
    assert ["messages", "100"] in [line.split() for line in out.splitlines()]
    code, _, err = call("import", tmp_path / "out", "--config", sql)
    assert (code, err) == (0, "")
    code, out, _ = call("export", tmp_path / "again", "--config", sql, "--json")
    found = json.loads(out)
    assert (code, found["directory"]) == (0, str(tmp_path / "again"))
    assert (found["messages"], found["pending_references"]) == (100, 100)
    back = config(tmp_path / "c", "journal")
    assert call("import", tmp_path / "again", "--config", back)[0] == 0
    for name in ("messages", "destinations"):
        one = json.loads((tmp_path / "out" / "manifest.json").read_text())["tables"][name]
        two = json.loads((tmp_path / "again" / "manifest.json").read_text())["tables"][name]
        assert one["rows"] == two["rows"]
    code, _, err = call("import", tmp_path / "again", "--config", back)
    assert code == 2
    assert "the store is not empty (1 destinations, 100 messages)" in err


def test_a_source_that_is_none_makes_no_store(call: Call, tmp_path: Path) -> None:
    journal = config(tmp_path / "a", "journal")
    code, out, err = call("import", tmp_path / "nothing", "--config", journal)
    assert (code, out) == (2, "")
    assert "there is no directory" in err
    assert not (tmp_path / "a" / "data").exists()
