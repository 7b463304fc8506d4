"""The whole gateway on the journaled store: gateway and database are killed under load, by seed."""

from __future__ import annotations

import itertools
import signal
import time
from pathlib import Path

import killed_under_load as crash
import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from jdbc_kit import prefix
from postgres_server import PostgresServer


def journaled(quick: bool) -> str:
    return f"""
[store]
plugin = "journaled"
checkpoint_interval = "100ms"
journal_log_file_size = "256kb"
use_quick_journal = {str(quick).lower()}
"""


def on_postgres(server: PostgresServer, where: Path) -> str:
    return f"""{journaled(False)}
url = "{server.url}"
user = "tidegate"
password_file = "{server.password_file}"
table_prefix = "{prefix(where)}"
"""


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_nothing_confirmed_is_lost_when_gateway_and_server_are_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    turns = itertools.count()

    def strike(gateway: GatewayProcess) -> None:
        if next(turns) % 2:
            crash.restart(gateway)
        else:
            postgres.stop(signal.SIGKILL)
            # The journal goes on confirming while the server is away.
            time.sleep(0.3)
            postgres.start()

    extra = on_postgres(postgres, tmp_path)
    oracle = await crash.run_kills(
        tmp_path, seed=8, kills=4, load_s=(0.15, 0.6), at_least=300, extra=extra, strike=strike
    )
    crash.check(oracle, "postgres")
    assert postgres.password not in (tmp_path / "gateway.log").read_text()


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(amount(1, 2)))
@pytest.mark.parametrize("quick", [False, True], ids=["journal", "quick"])
async def test_nothing_confirmed_is_lost_over_many_kills(
    tmp_path: Path, seed: int, quick: bool
) -> None:
    oracle = await crash.run_kills(
        tmp_path, seed=seed, kills=15, load_s=(0.02, 1.2), at_least=300, extra=journaled(quick)
    )
    crash.check(oracle, f"quick={quick}, seed {seed}")
