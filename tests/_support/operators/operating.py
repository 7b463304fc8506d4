"""Commands of operators, typed at a gateway of the test's own process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import main


class Command:
    """Types commands. Args: directory: of a gateway that runs."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = directory / "tidegate.toml"
        self._config.write_text(f'[broker]\ndata_directory = "{directory}"\n')
        self._capsys = capsys

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what was printed."""
        code = await asyncio.to_thread(main, [*arguments, "--config", str(self._config)])
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err

    async def rows(self, *arguments: str) -> Any:
        code, text = await self(*arguments, "--json")
        assert code == 0, text
        return json.loads(text)
