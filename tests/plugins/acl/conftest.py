"""Fixtures of the rules' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.spi import Identity


@pytest.fixture
def rules_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write the file of rules, again with each call."""

    def write(text: str) -> Path:
        path = tmp_path / "acl.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def somebody() -> Callable[..., Identity]:
    def make(
        principal: str = "ann",
        client_id: str = "c",
        groups: tuple[str, ...] = (),
        address: str = "192.0.2.1",
    ) -> Identity:
        return Identity(principal, frozenset(groups), client_id, address, "mqtt")

    return make
