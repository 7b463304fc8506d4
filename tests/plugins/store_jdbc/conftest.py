"""Makes ``jdbc_kit`` importable for the tests beside it, and closes what a failed one left open."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from jdbc_kit import STORES  # found in the folder above


@pytest.fixture(autouse=True)
async def no_store_stays_open() -> AsyncIterator[None]:
    """The loop would wait for ever for connections to PostgreSQL that nobody closes."""
    yield
    for store in STORES:
        await store.close()
    STORES.clear()
