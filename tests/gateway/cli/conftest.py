"""The command in this process with the test's own plugins, and as a process of its own."""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from operating import Command

from tidegate.cli import main
from tidegate.testing.embedded import EmbeddedGateway

TOYS_TOML = """
[broker]
name = "toybox"
data_directory = "{data}"

[[listeners]]
protocol = "toy"
bind = "127.0.0.1:{port}"

[store]
plugin = "toy"
{store}

[[destinations]]
match = ">"
cursor = "toy"
"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def tidegate(
    site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run the command in this process; it sees only the plugins of ``site``."""
    monkeypatch.setattr(importlib.metadata, "entry_points", site.entry_points)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: object) -> Done:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def toys(site, tmp_path: Path) -> Callable[..., Path]:
    """Install the toys; gives a function that writes a configuration which uses them alone."""
    site.add_toys()

    def write(*, port: int = 0, store: str = "", data: Path | None = None, more: str = "") -> Path:
        path = tmp_path / "toys.toml"
        text = TOYS_TOML.format(data=data or tmp_path / "data", port=port, store=store)
        path.write_text(text + more)
        return path

    return write


@pytest.fixture
def process(site) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``tidegate run --config FILE`` as a process of its own, killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(config: Path, *arguments: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(filter(None, (str(site.path), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "run", "--config", str(config), *arguments],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[EmbeddedGateway]:
    """A gateway of the test's own process."""
    async with EmbeddedGateway(data_directory=tmp_path) as found:
        yield found


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Commands of an operator's that find that gateway."""
    return Command(tmp_path, capsys)
