"""pytest knows the kits' options wherever the host is installed with its testing extra."""

import subprocess
import sys
from pathlib import Path

import pytest


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=240)


def test_the_options_are_described() -> None:
    result = run_pytest(Path("/"), "--help")
    for option in ("--store=NAME", "--store-option=KEY=VALUE", "--cursor=NAME"):
        assert option in result.stdout


@pytest.mark.parametrize(("cursor", "without"), [("store", ""), ("vm", "asyncio")])
def test_the_cursor_kit_runs_by_name(tmp_path: Path, cursor: str, without: str) -> None:
    """With pytest-asyncio, and without it."""
    kit = ["--pyargs", "tidegate.testing.cursor_kit", f"--cursor={cursor}", "-k", "not sequence"]
    kit += ["-p", f"no:{without}"] if without else []
    result = run_pytest(tmp_path, *kit)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


@pytest.mark.long
def test_the_store_kit_runs_by_name_with_options(tmp_path: Path) -> None:
    kit = ["--pyargs", "tidegate.testing.store_kit", "--store=journal", "-k", "new_store_is_empty"]
    result = run_pytest(tmp_path, *kit, "--store-option", 'checkpoint_interval="7s"')
    assert result.returncode == 0, result.stdout
    result = run_pytest(tmp_path, *kit, "--store-option", "chekpoint_interval=7")
    assert result.returncode != 0
    assert "did you mean 'checkpoint_interval'" in result.stdout


@pytest.mark.long
def test_a_kit_without_a_name_says_what_is_missing(tmp_path: Path) -> None:
    for kit, option in (("store", "--store=NAME"), ("cursor", "--cursor=NAME")):
        result = run_pytest(tmp_path, "--pyargs", f"tidegate.testing.{kit}_kit", "-x")
        assert result.returncode != 0
        assert option in result.stdout + result.stderr


def test_a_name_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, "--pyargs", "tidegate.testing.store_kit", "--store=no", "-x")
    assert result.returncode != 0
    assert "no entry point 'store-no'" in result.stdout
