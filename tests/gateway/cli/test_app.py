"""The command as its users meet it: output, errors, exit codes, signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from tidegate import __version__
from tidegate.cli._exit import ExitCode
from tidegate.spi import private_files


def test_the_version_names_the_contracts_too(tidegate) -> None:
    done = tidegate("--version")
    assert (done.code, done.out, done.err) == (0, f"tidegate {__version__} (SPI 1.0)\n", "")


def test_without_a_command_the_help_is_shown(tidegate) -> None:
    done = tidegate()
    assert done.code == ExitCode.CONFIG
    assert "check-config" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch"], "No such command"),
        (["run", "--confg", "x"], "--confg"),
        (["run", "--log-level", "loud"], "'--log-level': 'loud' is not one of 'debug', "),
        (["check-config"], "FILE"),
    ],
)
def test_a_wrong_call_is_one_line_on_stderr_and_code_2(tidegate, arguments, said: str) -> None:
    done = tidegate(*arguments)
    assert done.code == ExitCode.CONFIG
    assert done.out == ""
    assert re.fullmatch(r"tidegate: error: .*\(see `tidegate[ a-z-]* --help`\)\n", done.err)
    assert said in done.err


@pytest.mark.parametrize("group", [(), ("destination",), ("sink",), ("limit",), ("transactions",)])
def test_a_list_of_commands_has_whole_sentences(
    tidegate, group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = tidegate(*group, "--help").out.partition("Commands:\n")[2]
    assert len(listed.splitlines()) > 1
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


# -------------------------------------------------------------------------------- plugins


@pytest.mark.parametrize("group", ["store", "transactions"])
def test_a_group_without_a_command_shows_its_help_as_it_is(tidegate, group: str) -> None:
    done = tidegate(group)
    assert (done.code, done.out) == (ExitCode.CONFIG, "")
    assert done.err.startswith(f"Usage: tidegate {group} [OPTIONS] COMMAND [ARGS]...\n")
    assert "tidegate: error" not in done.err
    assert len(done.err.splitlines()) > 8


def test_with_nothing_installed_each_missing_kind_names_its_package(tidegate) -> None:
    done = tidegate("plugins")
    assert done.code == 0
    stores = ("tidegate-store-journal", "tidegate-store-jdbc", "tidegate-store-journaled")
    extensions = ("tidegate-auth-file", "tidegate-auth-jwt", "tidegate-acl", "tidegate-bridge")
    extensions += ("tidegate-traces",)
    assert done.out.splitlines() == [
        "no plugins installed",
        "no store plugin: " + " or ".join(f"pip install {name}" for name in stores),
        "no cursor plugin: pip install tidegate-cursors",
        "no protocol plugin: pip install tidegate-protocols or pip install tidegate-admin",
        "no sink plugin: pip install tidegate-sink-flight or pip install tidegate-sink-spark",
        "no extension plugin: " + " or ".join(f"pip install {name}" for name in extensions),
    ]
    assert tidegate("plugins", "--json").out == "[]\n"


def test_the_plugins_are_listed_with_what_the_configuration_makes_active(tidegate, toys) -> None:
    done = tidegate("plugins", "--config", toys())
    assert done.code == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in done.out.splitlines() if "toys" in line]
    assert rows[0] == ["store", "toy", "0.9", "1.0", "toys", "yes", "toys for tests"]
    assert [row[5] for row in rows] == ["yes", "yes", "yes", "no", "no"]
    as_json = json.loads(tidegate("plugins", "--json", "--config", toys()).out)
    assert as_json[0] == {
        "kind": "store",
        "name": "toy",
        "version": "0.9",
        "spi_version": "1.0",
        "distribution": "toys",
        "active": True,
        "summary": "toys for tests",
        "problem": "",
    }


def test_a_broken_plugin_is_listed_with_its_cause(tidegate, site) -> None:
    site.add("bad-dist", {"store-bad": "bad_dist"}, "import module_that_is_nowhere")
    done = tidegate("plugins")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "PROBLEM: bad-dist 1.2.3" in text
    assert "no store plugin" not in text


# --------------------------------------------------------------------------- check-config


def test_check_config_prints_what_would_run_with_every_option(tidegate, toys) -> None:
    path = toys(port=5, store='journal_max_file_length = "1024kb"\npassword = "s3cret"')
    done = tidegate("check-config", path)
    assert done.code == 0, done.err
    lines = [line.lstrip("│├└─ ") for line in done.out.splitlines()]
    assert lines[0] == f"configuration: {path}"
    for line in (
        'name = "toybox"',
        'plugin = "toy"',
        'journal_max_file_length = "1mb"',
        'checkpoint_interval = "5s"',
        'bind = "127.0.0.1:5"',
        'transport = "tcp"',
        "allow_anonymous = true",
        'frame_bytes_max = "16mb"',
        'match = ">"',
        'subscriber_cursor = "toy"',
        "sinks: none",
        "plugins: cursor-toy 0.9, protocol-toy 0.9, store-toy 0.9",
    ):
        assert line in lines
    assert "s3cret" not in done.out
    assert ":pw@" not in done.out


def test_check_config_gives_machines_the_same(tidegate, toys, tmp_path: Path) -> None:
    path = toys(more='[[sinks]]\nplugin = "toy"\ntable = "t"\n[[extensions]]\nplugin = "door"\n')
    done = tidegate("check-config", "--json", path)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    assert shown["config"] == str(path)
    assert shown["broker"]["acknowledged_age"] == "7d"
    assert shown["broker"]["data_directory"] == str(tmp_path / "data")
    assert shown["store"]["url"] == "sql://user:***@host/db"
    assert shown["store"]["password"] == ""
    assert shown["listeners"][0]["allow_anonymous"] is False
    assert shown["sinks"] == [{"plugin": "toy", "name": "toy", "table": str(path.parent / "t")}]
    assert shown["extensions"] == [{"plugin": "door"}]


@pytest.mark.parametrize("command", [["check-config"], ["run", "--config"]])
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("def intercept(", "def intercepted(", "did you mean `intercept`?"),
        ("def intercept(", "def listen(", "none of the methods that the gateway calls"),
        ("async def page_in", "async def pages_in", "did you mean `page_in`?"),
        ("async def write(", "def write(", "a `write` that must be async def (MessageStore)"),
    ],
)
def test_a_plugin_whose_object_is_not_whole_is_named(
    tidegate, toys, site, command, right: str, wrong: str, said: str
) -> None:
    module = site.path / "toys.py"
    path = toys(more='[[extensions]]\nplugin = "open"\n')
    module.write_text(module.read_text().replace(right, wrong))
    done = tidegate(*command, path)
    assert done.code == ExitCode.PLUGIN
    assert "toys 0.9" in done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("store", "code", "said"),
    [
        ("chekpoint_interval = '1s'", ExitCode.CONFIG, "store.chekpoint_interval: unknown key"),
        ("journal_max_file_length = 7", ExitCode.CONFIG, "store.journal_max_file_length: 7 has no"),
    ],
)
@pytest.mark.parametrize("command", [["check-config"], ["run", "--config"]])
def test_check_config_and_run_refuse_the_same_with_the_same_words(
    tidegate, toys, monkeypatch: pytest.MonkeyPatch, command, store: str, code: int, said: str
) -> None:
    monkeypatch.setattr("tidegate.cli._run.configure_logging", lambda level: Mock())
    path = toys(store=store)
    done = tidegate(*command, path)
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith(f"tidegate: error: {path}: {said}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", [["check-config"], ["run", "--config"]])
def test_a_sink_on_a_store_without_an_acknowledged_log_is_refused(
    tidegate, toys, site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command
) -> None:
    monkeypatch.setattr("tidegate.cli._run.configure_logging", lambda level: Mock())
    path = toys(more='[[sinks]]\nplugin = "toy"\ntable = "t"\n')
    module = site.path / "toys.py"
    text = module.read_text()
    assert text.count(", acknowledged_log=self") == 1
    module.write_text(text.replace(", acknowledged_log=self", ""))
    done = tidegate(*command, path)
    assert done.code == ExitCode.CONFIG
    assert done.out == ""
    assert done.err.startswith(
        f"tidegate: error: {path}: sinks: store 'toy' does not keep acknowledged"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", [["check-config"], ["run", "--config"]])
@pytest.mark.parametrize(
    ("broker", "said"),
    [
        ("", "store 'toy' cannot measure how much space it takes"),
        ("persistent = false\n", "has no effect because broker.persistent is false"),
    ],
)
def test_a_limit_that_the_store_cannot_obey_is_refused(
    tidegate, toys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command, broker: str, said: str
) -> None:
    monkeypatch.setattr("tidegate.cli._run.configure_logging", lambda level: Mock())
    path = toys()
    text = path.read_text()
    assert text.count("[broker]\n") == 1
    path.write_text(text.replace("[broker]\n", f'[broker]\nstore_limit = "1gb"\n{broker}'))
    done = tidegate(*command, path)
    assert done.code == ExitCode.CONFIG
    assert done.out == ""
    assert done.err.startswith(f"tidegate: error: {path}: broker.store_limit: {said}")
    assert not (tmp_path / "data").exists()


def test_a_missing_plugin_is_code_6_and_names_its_package(tidegate, tmp_path: Path) -> None:
    path = tmp_path / "gw.toml"
    path.write_text("")
    done = tidegate("check-config", path)
    assert done.code == ExitCode.PLUGIN
    assert "pip install tidegate-protocols" in done.err
    assert done.err.count("\n") == 1


def test_a_reader_of_the_output_that_goes_away_is_no_error(site, toys) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m tidegate check-config "$1" | true', sys.executable, toys()],
        env=os.environ | {"PYTHONPATH": str(site.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""


# ------------------------------------------------------------------------------------ run


def started(process: subprocess.Popen[str]) -> list[str]:
    """What the gateway prints once it runs."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("plugins: "):
            break
    return lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_says_what_runs_and_a_signal_stops_it_cleanly(
    process: Callable[..., subprocess.Popen[str]], toys, tmp_path: Path, number: signal.Signals
) -> None:
    gateway = process(toys(more='[[extensions]]\nplugin = "door"\n'))
    lines = started(gateway)
    assert re.fullmatch(r"listening: toy://127\.0\.0\.1:\d+", lines[0])
    assert lines[1:] == [
        "store: toy",
        f"data directory: {tmp_path / 'data'}",
        "sinks: none",
        "plugins: cursor-toy 0.9, extension-door 1.2.3, protocol-toy 0.9, store-toy 0.9",
    ]
    port = int(lines[0].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    gateway.send_signal(number)
    out, err = gateway.communicate(timeout=60)
    assert gateway.returncode == 0, err
    assert out == ""
    assert f"signal={number.name}: stopping" in err


def test_a_start_imports_nothing_that_it_does_not_use(
    process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    config = tmp_path / "gateway.toml"
    listeners = "".join(
        f'[[listeners]]\nprotocol = "{name}"\nbind = "127.0.0.1:0"\n' for name in ("stomp", "mqtt")
    )
    config.write_text(f'[broker]\ndata_directory = "{tmp_path / "data"}"\n{listeners}')
    gateway = process(config, "--log-level", "warning")
    assert len(started(gateway)) == 6
    gateway.send_signal(signal.SIGTERM)
    _, err = gateway.communicate(timeout=60)
    imported = set(re.findall(r"^import time: .*\| +([\w.]+)$", err, re.MULTILINE))
    assert {"tidegate.gateway", "tidegate_store_journal.store"} <= imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & {
        *("typer", "pydantic", "rich", "lark", "pyspark", "asyncpg", "aiosqlite", "sqlalchemy"),
        *("pyarrow", "cryptography", "tidegate_store_jdbc", "tidegate_store_journaled"),
        *("tidegate_sink_spark", "tidegate_acl", "tidegate_auth_file", "pytest", "hypothesis"),
    }


@pytest.mark.parametrize(
    "rest", [["--log-level=error"], ["--log-level", "loud"], ["--help"], ["x"]]
)
def test_run_takes_the_options_in_every_spelling(tidegate, tmp_path: Path, rest: list[str]) -> None:
    path = tmp_path / "gw.toml"
    path.write_text("nonsense")
    done = tidegate("run", f"--config={path}", *rest)
    if rest == ["--help"]:
        assert (done.code, "second signal" in done.out) == (ExitCode.OK, True)
    else:
        assert done.code == ExitCode.CONFIG
        assert str(path) in done.err if rest[0].endswith("error") else "--help" in done.err


def test_a_port_in_use_is_code_3_and_names_the_key(process, toys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = process(toys(port=port))
        out, err = gateway.communicate(timeout=60)
    assert gateway.returncode == ExitCode.BIND
    assert out == ""
    assert err.splitlines()[-1] == (
        f"tidegate: error: 127.0.0.1:{port} is already in use; stop the other program or change "
        "listeners[0].bind"
    )
    assert "Traceback" not in err


def test_an_unusable_data_directory_is_code_5(process, toys, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    gateway = process(toys(data=tmp_path / "file" / "data"))
    _, err = gateway.communicate(timeout=60)
    assert gateway.returncode == ExitCode.STORAGE
    last = err.splitlines()[-1]
    assert last.startswith("tidegate: error: ")
    assert str(tmp_path / "file") in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("failure", "code", "said", "traced"),
    [
        ("locked", ExitCode.STORE_LOCKED, "(the directory is set by broker.data_directory)", False),
        ("corrupt", ExitCode.STORE_CORRUPT, "data-1 at 4096: bad CRC", False),
        ("full", ExitCode.STORAGE, "free disk space", False),
        ("io", ExitCode.STORAGE, "sync failed", False),
        ("denied", ExitCode.STORAGE, "/nowhere: Permission denied", False),
        ("config", ExitCode.CONFIG, "failure: contradicts itself", False),
        ("bug", ExitCode.PLUGIN, "plugin store-toy: open() failed: RuntimeError: a bug (", True),
    ],
)
def test_each_failure_to_start_has_its_code_and_its_line(
    process, toys, failure: str, code: int, said: str, traced: bool
) -> None:
    gateway = process(toys(store=f'failure = "{failure}"'), "--log-level", "error")
    out, err = gateway.communicate(timeout=60)
    assert gateway.returncode == code, err
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("tidegate: error: ")
    assert said in last
    assert ("Traceback" in err) is traced
    if not traced:
        assert err.count("\n") == 1


def test_check_config_says_who_else_could_change_the_file(
    tidegate, toys, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    file = Path(toys())
    file.chmod(0o666)
    assert tidegate("check-config", str(file)).code == 0
    assert f"configuration {file}: everybody on this machine can" in caplog.text
