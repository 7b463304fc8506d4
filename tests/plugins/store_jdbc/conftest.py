"""Closes what a failed test left open."""

from collections.abc import AsyncIterator

import pytest
from jdbc_kit import STORES


@pytest.fixture(autouse=True)
async def no_store_stays_open() -> AsyncIterator[None]:
    """The loop would wait for ever for connections to PostgreSQL that nobody closes."""
    yield
    for store in STORES:
        await store.close()
    STORES.clear()
