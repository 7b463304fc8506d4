"""What is built is what is promised: the host wheel alone runs, and each room's wheel is complete.

These build real wheels and install the host's into an environment of its own, with uv and its cache,
as `make setup` does. Nothing of this checkout is importable there.
"""

import configparser
import importlib.util
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "tidegate": (".", "tidegate"),
    "tidegate-protocols": ("protocols", "tidegate_protocols"),
    "tidegate-store-journal": ("plugins/store_journal", "tidegate_store_journal"),
    "tidegate-store-jdbc": ("plugins/store_jdbc", "tidegate_store_jdbc"),
    "tidegate-store-journaled": ("plugins/store_journaled", "tidegate_store_journaled"),
    "tidegate-cursors": ("plugins/cursors", "tidegate_cursors"),
    "tidegate-admin": ("plugins/admin", "tidegate_admin"),
    "tidegate-sink-flight": ("plugins/sink_flight", "tidegate_sink_flight"),
    "tidegate-spark-source": ("plugins/spark_source", "pyspark_tidegate"),
    "tidegate-sink-spark": ("plugins/sink_spark", "tidegate_sink_spark"),
    "tidegate-acl": ("plugins/acl", "tidegate_acl"),
    "tidegate-auth-file": ("plugins/auth_file", "tidegate_auth_file"),
    "tidegate-auth-jwt": ("plugins/auth_jwt", "tidegate_auth_jwt"),
    "tidegate-bridge": ("plugins/bridge", "tidegate_bridge"),
    "tidegate-traces": ("plugins/traces", "tidegate_traces"),
}


def _uv() -> str:
    """Return the uv that set this checkout up; `make test` has made sure that there is one."""
    path = ROOT / "scripts" / "bootstrap.py"
    spec = importlib.util.spec_from_file_location("tidegate_bootstrap", path)
    assert spec is not None
    assert spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    uv = bootstrap.find_uv()
    assert uv is not None, "no uv found; run `make setup`"
    return uv


def _run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # Neither the environment of this test run nor a developer's PYTHONPATH may leak in.
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env | {"COLUMNS": "200", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build every wheel of the workspace once; returns them by distribution name."""
    folder = tmp_path_factory.mktemp("wheels")
    built = _run(_uv(), "build", "--wheel", "--all-packages", "--out-dir", folder)
    assert built.returncode == 0, built.stdout
    found = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert found.keys() == ROOMS.keys()
    return found


@pytest.fixture(scope="module")
def alone(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the host wheel alone; returns the `bin` folder of its environment."""
    env = tmp_path_factory.mktemp("alone") / "env"
    made = _run(_uv(), "venv", "--python", sys.executable, env)
    assert made.returncode == 0, made.stdout
    installed = _run(_uv(), "pip", "install", "--python", env, wheels["tidegate"])
    assert installed.returncode == 0, installed.stdout
    return env / "bin"


@pytest.mark.long
def test_the_host_alone_lists_zero_plugins_and_says_who_provides_them(
    alone: Path, tmp_path: Path
) -> None:
    done = _run(alone / "tidegate", "plugins", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    text = " ".join(done.stdout.split())
    assert "no plugins installed" in text.lower()
    for package in ("tidegate-store-journal", "tidegate-protocols", "tidegate-cursors"):
        assert package in text


def test_the_host_alone_does_not_run_and_names_the_missing_package(
    alone: Path, tmp_path: Path
) -> None:
    done = _run(alone / "tidegate", "run", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout, done.stdout
    named = [name for name in ROOMS if name != "tidegate" and name in done.stdout]
    assert named, done.stdout


def test_the_host_alone_imports_its_contract_and_none_of_the_rooms(alone: Path) -> None:
    source = (
        "import importlib.util as u, tidegate.spi, tidegate;"
        f"print([n for n in {[package for _, package in ROOMS.values()]!r} if u.find_spec(n)])"
    )
    done = _run(alone / "python", "-c", source)
    assert done.stdout.strip() == "['tidegate']"


@pytest.mark.parametrize("name", ROOMS)
def test_a_wheel_holds_one_typed_package_and_all_of_its_modules(
    name: str, wheels: dict[str, Path]
) -> None:
    folder, package = ROOMS[name]
    with zipfile.ZipFile(wheels[name]) as archive:
        members = set(archive.namelist())
    tops = {member.split("/")[0] for member in members if ".dist-info/" not in member}
    assert tops == {package}
    assert f"{package}/py.typed" in members
    base = ROOT / ("gateway" if folder == "." else folder)
    modules = {path.relative_to(base).as_posix() for path in (base / package).rglob("*.py")}
    assert modules <= members


#: That of Spark's side is no plugin of the gateway's: it has no entry point.
_PLUGINS = [name for name in ROOMS if name not in ("tidegate", "tidegate-spark-source")]


@pytest.mark.parametrize("name", _PLUGINS)
def test_every_entry_point_of_a_wheel_names_a_module_that_is_in_it(
    name: str, wheels: dict[str, Path]
) -> None:
    folder, _ = ROOMS[name]
    with zipfile.ZipFile(wheels[name]) as archive:
        members = set(archive.namelist())
        metadata = next(one for one in members if one.endswith(".dist-info/entry_points.txt"))
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(metadata).decode())
    points = dict(parser["tidegate.plugins"])
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    assert points == project["entry-points"]["tidegate.plugins"]
    for module in points.values():
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py"} & members, module


def test_the_versions_of_all_rooms_are_one() -> None:
    files = [ROOT / folder / "pyproject.toml" for folder, _ in ROOMS.values()]
    versions = {tomllib.loads(path.read_text())["project"]["version"] for path in files}
    assert len(versions) == 1


def test_no_lock_file_is_committed() -> None:
    git = shutil.which("git")
    assert git is not None
    done = _run(git, "ls-files", "*.lock", "**/*.lock")
    assert done.stdout.split() == []


def test_the_console_is_in_the_wheel_of_its_room(wheels: dict[str, Path]) -> None:
    room = ROOT / "plugins" / "admin"
    files = [path for path in (room / "tidegate_admin" / "console").rglob("*") if path.is_file()]
    assert files
    with zipfile.ZipFile(wheels["tidegate-admin"]) as wheel:
        assert {str(path.relative_to(room)) for path in files} <= set(wheel.namelist())
