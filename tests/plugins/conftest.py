"""A real PostgreSQL for the tests of the SQL stores, started once and thrown away."""

from collections.abc import Iterator

import pytest
from postgres_server import PostgresServer, binaries


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that no test stops for longer than its own run.

    Without PostgreSQL the tests that need one say that they were skipped; `.ci/run` installs it and
    takes no skips.
    """
    if binaries() is None:
        pytest.skip("no PostgreSQL server here; install the package postgresql-15")
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """That server, up (a test before may have killed it)."""
    postgres_server.start()
    return postgres_server
