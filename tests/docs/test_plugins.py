"""docs/plugins.md says what the contract is, and its example is a plugin that works."""

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidegate.plugins import FACTORY_HOOKS, PluginKind
from tidegate.spi import ENTRY_POINT_GROUP, SPI_VERSION, PluginInfo, hookspecs

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "plugins.md").read_text()
HOOKS = {
    name: hook
    for name, hook in inspect.getmembers(hookspecs, inspect.isfunction)
    if hasattr(hook, f"{hookspecs.PROJECT}_spec")
}


def section(heading: str) -> str:
    found = re.search(rf"^### `{heading}`\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section on {heading}"
    return found[1]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_section_with_its_signature(name: str) -> None:
    signature = re.search(r"^def .*?:$", inspect.getsource(HOOKS[name]), re.DOTALL | re.MULTILINE)
    assert signature is not None
    assert f"```python\n{signature[0]}\n```" in section(name)


def test_every_section_on_a_hook_is_on_one_that_exists() -> None:
    assert set(re.findall(r"^### `(\w+)`", TEXT, re.MULTILINE)) == set(HOOKS)
    assert set(FACTORY_HOOKS.values()) <= set(HOOKS)


@pytest.mark.parametrize("kind", PluginKind, ids=lambda kind: kind.value)
def test_every_kind_has_a_row_with_its_hook(kind: PluginKind) -> None:
    row = re.search(rf"^\| {kind.value} \| `{kind.value}-NAME` \|.*$", TEXT, re.MULTILINE)
    assert row is not None
    assert f"`{FACTORY_HOOKS[kind]}`" in row[0]


def test_the_version_of_the_contract_is_the_one_in_force() -> None:
    major, minor = SPI_VERSION
    assert f"version **{major}.{minor}** (`tidegate.spi.SPI_VERSION`)" in TEXT


def test_every_field_of_the_plugins_description_is_documented() -> None:
    for field in PluginInfo.__dataclass_fields__:
        assert f"* `{field}`: " in TEXT


EXAMPLE = ROOT / "examples" / "plugins" / "store_dict"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a program that finds the example as if it were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"][ENTRY_POINT_GROUP]
    assert points == {"store-dict": "tidegate_store_dict"}
    assert '\nstore-dict = "tidegate_store_dict"\n' in TEXT
    (info / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\nstore-dict = tidegate_store_dict\n"
    )
    return os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{EXAMPLE}"}


@pytest.mark.long
def test_the_example_passes_the_conformance_kit_by_the_documented_command(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    command = "pytest --pyargs tidegate.testing.store_kit --store=NAME"
    assert f"\n{command}\n" in TEXT
    done = subprocess.run(
        [sys.executable, "-m", *command.replace("NAME", "dict").split(), "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout)


def test_the_examples_one_line_of_configuration_makes_it_the_store(
    installed: dict[str, str],
) -> None:
    config = EXAMPLE / "tidegate.toml"
    assert f"tidegate run --config {config.relative_to(ROOT)} " in TEXT
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", "check-config", str(config), "--json"],
        env=installed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["store"]["plugin"] == "dict"
