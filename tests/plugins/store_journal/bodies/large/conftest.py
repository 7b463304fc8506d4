"""Bodies are read from their files."""

from __future__ import annotations

import pytest

from tidegate_store_journal.bodies import large as _large


@pytest.fixture
def from_memory() -> None:
    """Bodies that were just written are read from memory, as they are outside these tests."""


@pytest.fixture(autouse=True)
def from_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is read from its file, unless a test wants :func:`from_memory`."""
    if "from_memory" not in request.fixturenames:
        monkeypatch.setattr(_large, "RECENT_BYTES_MAX", 0)
