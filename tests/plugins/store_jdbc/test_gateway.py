"""The whole gateway on the SQL store: gateway and database are killed under load, by seed.

The clients and the oracle are those of ``tests/crash/test_sigkill.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from jdbc_kit import prefix
from postgres_server import PostgresServer

sys.path.insert(0, str(Path(__file__).parents[2] / "crash"))

import test_sigkill as crash  # pyright: ignore[reportMissingImports] - on the path above

SQLITE = '[store]\nplugin = "jdbc"\n'


def on_postgres(server: PostgresServer, where: Path) -> str:
    return f"""
[store]
plugin = "jdbc"
url = "{server.url}"
user = "tidegate"
password_file = "{server.password_file}"
table_prefix = "{prefix(where)}"
"""


def accounted_for(oracle: crash.Oracle, context: str) -> None:
    crash.check(oracle, context)
    assert len(oracle.confirmed) > 500, "the load was too small to prove anything"


@pytest.mark.timeout(300)
def test_nothing_confirmed_is_lost_when_the_gateway_is_killed_on_sqlite(tmp_path: Path) -> None:
    oracle = asyncio.run(
        crash.run_kills(tmp_path, seed=7, kills=6, load_s=(0.15, 0.9), extra=SQLITE)
    )
    accounted_for(oracle, "sqlite")


@pytest.mark.timeout(300)
def test_nothing_confirmed_is_lost_when_gateway_and_server_are_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    turns = itertools.count()

    def strike(gateway: GatewayProcess) -> None:
        if next(turns) % 2:
            crash.restart(gateway)
        else:
            postgres.stop(signal.SIGKILL)
            postgres.start()

    extra = on_postgres(postgres, tmp_path)
    oracle = asyncio.run(
        crash.run_kills(tmp_path, seed=8, kills=6, load_s=(0.15, 0.9), extra=extra, strike=strike)
    )
    accounted_for(oracle, "postgres")
    log = (tmp_path / "gateway.log").read_text()
    assert "database=unreachable" in log
    assert "database=reachable" in log
    assert postgres.password not in log


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_confirmed_is_lost_over_many_kills_on_sqlite(tmp_path: Path, seed: int) -> None:
    oracle = asyncio.run(
        crash.run_kills(tmp_path, seed=seed, kills=30, load_s=(0.02, 1.2), extra=SQLITE)
    )
    accounted_for(oracle, f"sqlite, seed {seed}")
