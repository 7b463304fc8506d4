"""Sessions that receive large messages; every task of a test ends with it."""

import asyncio

import pytest
from mqtt_large_in import Case


@pytest.fixture
def case(make_client):
    """``case(level, **options)``: a Case that is connected."""
    return lambda level=5, **options: Case(make_client, level, **options).connects()


@pytest.fixture(autouse=True)
async def every_task_ends():
    yield
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []
