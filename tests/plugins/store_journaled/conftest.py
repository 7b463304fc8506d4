"""The PostgreSQL of the SQL store's tests, and what they share, for the store with a journal in front."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "store_jdbc"))
sys.path.insert(0, str(Path(__file__).parent))

from postgres_server import PostgresServer, binaries


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that no test stops for longer than its own run."""
    if binaries() is None:
        pytest.skip("no PostgreSQL server here; install the package postgresql-15")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """That server, up (a test before may have killed it)."""
    postgres_server.start()
    return postgres_server
