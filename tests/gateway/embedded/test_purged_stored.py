"""Chosen messages and groups of dead letters, purged and taken back, on the stores that need no server."""

from __future__ import annotations

from pathlib import Path

import pytest
from purged_scenario import purged_and_undone


@pytest.mark.parametrize("store", ["journal", "jdbc", "journaled"])
async def test_what_was_purged_is_kept_over_restarts_and_back(tmp_path: Path, store: str) -> None:
    await purged_and_undone(tmp_path, f'[store]\nplugin = "{store}"\n')
