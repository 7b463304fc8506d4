"""`tidegate store …` for stores in a database, as its users meet it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jdbc_kit import QUEUE, opened, pending, prefix, run, write
from numbered import add
from postgres_server import PostgresServer

from tidegate.cli import main
from tidegate_store_jdbc.database.secrets import KEY_VARIABLE, unmask

Call = Callable[..., tuple[int, str, str]]


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def tidegate(
        *arguments: object, answers: str = "", terminal: bool = False
    ) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", (Terminal if terminal else io.StringIO)(answers))
        code = main(["store", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return tidegate


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gw.toml"
    path.write_text(f'[broker]\ndata_directory = "{tmp_path / "data"}"\n[store]\nplugin = "jdbc"\n')
    return path


async def fill(where: Path) -> None:
    store, _ = await opened(where)
    await write(store, QUEUE, *[add(n) for n in range(1, 6)])
    await store.close()


async def found(where: Path) -> list[int]:
    store, _ = await opened(where)
    sequences = await pending(store)
    await store.close()
    return sequences


def test_a_life_of_tables(call: Call, config: Path, tmp_path: Path) -> None:
    assert call("exists", "-c", config)[0] == 1
    assert not (tmp_path / "data" / "tidegate.db").exists()  # asking makes nothing
    code, out, _ = call("create", "-c", config)
    assert (code, out) == (0, "created the tables in sqlite:///tidegate.db\n")
    assert call("exists", "-c", config)[0] == 0
    run(fill(tmp_path / "data"))
    code, out, _ = call("query", "-c", config)
    assert code == 0
    assert "owner: nobody" in out
    row = next(line for line in out.splitlines() if line.startswith("queue://q"))
    assert row.split() == ["queue://q", "5", "500"]
    report = json.loads(call("query", "-c", config, "--json")[1])
    assert report["destinations"] == [["queue://q", 5, 500]]
    assert call("remove-lock", "-c", config, "--yes")[1] == "nobody held the lock\n"


def test_what_destroys_must_be_confirmed(call: Call, config: Path, tmp_path: Path) -> None:
    call("create", "-c", config)
    run(fill(tmp_path / "data"))
    for command in ("delete", "recreate", "remove-lock"):
        code, _, err = call(command, "-c", config)
        assert code == 2
        assert "--yes" in err
    assert run(found(tmp_path / "data")) == [1, 2, 3, 4, 5]
    assert call("recreate", "-c", config, "--yes")[0] == 0
    assert run(found(tmp_path / "data")) == []
    assert call("delete", "-c", config, "--yes")[1].startswith("deleted 14 tables")
    assert call("exists", "-c", config)[0] == 1


def test_a_no_on_the_terminal_changes_nothing(call: Call, config: Path) -> None:
    call("create", "-c", config)
    code, _, err = call("delete", "-c", config, answers="n\n", terminal=True)
    assert code != 0
    assert "Delete all messages in sqlite:///tidegate.db?" in err
    assert call("exists", "-c", config)[0] == 0
    assert call("delete", "-c", config, answers="y\n", terminal=True)[0] == 0


def test_a_dump_is_restored_into_an_empty_store_or_instead_of_one(
    call: Call, config: Path, tmp_path: Path
) -> None:
    run(fill(tmp_path / "data"))
    code, out, _ = call("dump", tmp_path / "dump", "-c", config, "--json")
    assert code == 0
    assert json.loads(out)["messages"] == 5
    code, _, err = call("restore", tmp_path / "dump", "-c", config)
    assert code != 0
    assert "not empty" in err
    assert call("restore", tmp_path / "dump", "-c", config, "--recreate")[0] == 2
    assert call("restore", tmp_path / "dump", "-c", config, "--recreate", "--yes")[0] == 0
    assert run(found(tmp_path / "data")) == [1, 2, 3, 4, 5]


def test_a_secret_is_masked_from_stdin_with_a_new_key(
    call: Call, config: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    code, out, err = call("mask", "--key-file", key, "--new-key", "-c", config, answers="s3cr3t\n")
    assert code == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert "s3cr3t" not in out + err
    assert unmask(out.strip(), key.read_bytes().strip(), "password") == "s3cr3t"
    code, _, err = call("mask", "--key-file", key, "--new-key", answers="x\n")
    assert code == 2
    assert "File exists" in err
    assert call("mask", "--key-file", key, answers="\n")[0] == 2


def test_the_key_may_be_in_the_environment(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.fernet import Fernet

    secret = Fernet.generate_key()
    monkeypatch.setenv(KEY_VARIABLE, secret.decode())
    code, out, _ = call("mask", answers="other\n")
    assert code == 0
    assert unmask(out.strip(), secret, "password") == "other"


def test_no_command_shows_the_password(
    call: Call,
    config: Path,
    tmp_path: Path,
    postgres: PostgresServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with config.open("a") as file:
        file.write(
            f'url = "{postgres.url}"\nuser = "tidegate"\npassword = "{postgres.password}"\n'
            f'table_prefix = "{prefix(tmp_path)}"\n'
        )
    shown = "".join(
        "".join(map(str, call(*arguments, "-c", config)))
        for arguments in (("create",), ("query",), ("query", "--json"), ("exists",))
    )
    main(["check-config", "--config", str(config)])
    main(["check-config", "--config", str(config), "--json"])
    captured = capsys.readouterr()
    assert "there is a store in postgresql://127.0.0.1" in shown
    assert postgres.password not in shown + captured.out + captured.err


def test_another_store_has_none_of_this(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n[store]\nplugin = "journal"\n')
    for command in ("create", "exists", "query"):
        code, _, err = call(command, "-c", path)
        assert code == 2
        assert "not in a database" in err
