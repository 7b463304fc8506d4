"""Bodies are read from their files, which go at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from large_messages import no_collector

from tidegate_store_journal.bodies import large as _large


@pytest.fixture
def from_memory() -> None:
    """Bodies that were just written are delivered from memory, as they are outside these tests."""


@pytest.fixture(autouse=True)
def from_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is read from its file, unless a test wants :func:`from_memory`."""
    if "from_memory" not in request.fixturenames:
        monkeypatch.setattr(_large, "RECENT_BYTES_MAX", 0)


@pytest.fixture(autouse=True)
def files_go_at_once() -> Iterator[None]:
    with no_collector():
        yield
