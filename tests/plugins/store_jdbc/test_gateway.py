"""The whole gateway on the SQL store: gateway and database are killed under load, by seed.

The clients and the oracle are those of ``killed_under_load``.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
import time
from pathlib import Path

import killed_under_load as crash
import pytest
from crash_crew import amount
from gateway_process import GatewayProcess
from jdbc_kit import prefix
from postgres_server import PostgresServer
from purged_scenario import purged_and_undone
from wire import StompClient

SQLITE = '[store]\nplugin = "jdbc"\n'


def on_postgres(server: PostgresServer, where: Path) -> str:
    return f"""
[store]
plugin = "jdbc"
url = "{server.url}"
user = "{server.scram_user}"
password_file = "{server.password_file}"
table_prefix = "{prefix(where)}"
"""


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_nothing_confirmed_is_lost_when_the_gateway_is_killed_on_sqlite(
    tmp_path: Path,
) -> None:
    oracle = await crash.run_kills(
        tmp_path, seed=7, kills=3, load_s=(0.15, 0.9), at_least=500, extra=SQLITE
    )
    crash.check(oracle, "sqlite")


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
            postgres.start()
            # Before the gateway itself is killed it finds the server again.
            end = time.monotonic() + 60
            while "database=reachable" not in gateway.log.read_text():
                assert time.monotonic() < end, gateway.tail()
                time.sleep(0.02)

    extra = on_postgres(postgres, tmp_path)
    oracle = await crash.run_kills(
        tmp_path, seed=8, kills=4, load_s=(0.15, 0.9), at_least=500, extra=extra, strike=strike
    )
    crash.check(oracle, "postgres")
    log = (tmp_path / "gateway.log").read_text()
    assert "database=unreachable" in log
    assert "database=reachable" in log
    assert postgres.password not in log


async def test_what_was_purged_is_kept_over_restarts_and_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    await purged_and_undone(tmp_path, on_postgres(postgres, tmp_path))


@pytest.mark.timeout(300)
async def test_a_standby_gateway_takes_over_with_every_message(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    extra = on_postgres(postgres, tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    second = GatewayProcess(tmp_path / "two", extra=extra)

    async def send(port: int) -> None:
        client = await StompClient.connect(port)
        for number in range(50):
            client.send("SEND", b"%d" % number, destination="/queue/q", receipt=str(number))
        for number in range(50):
            await client.receipt(str(number))
        await client.aclose()

    async def receive(port: int) -> list[bytes]:
        client = await StompClient.connect(port)
        client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="auto")
        frames = [await client.receive() for _ in range(50)]
        await client.aclose()
        return [frame.body for frame in frames]

    def standby_waits() -> bool:
        return second.log.exists() and "standby: waiting for the lock" in second.log.read_text()

    with GatewayProcess(tmp_path / "one", extra=extra) as first:
        starting = threading.Thread(target=second.start)
        starting.start()
        try:
            end = time.monotonic() + 60
            while not standby_waits():
                assert time.monotonic() < end, "no standby"
                time.sleep(0.02)
            await send(first.stomp_port)
            first.kill()
            starting.join(60)
            assert not starting.is_alive()
            assert await receive(second.stomp_port) == [b"%d" % n for n in range(50)]
            assert second.stop() == 0
        finally:
            second.__exit__()
            starting.join(60)


def test_a_statement_that_the_database_refuses_is_named_with_file_and_key(tmp_path: Path) -> None:
    extra = SQLITE + 'statements = { find_version_statement = "SELECT version FROM nowhere" }\n'
    gateway = GatewayProcess(tmp_path, extra=extra)
    done = subprocess.run(
        gateway.command(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"{gateway.config}: store.statements.find_version_statement: " in done.stderr
    assert "nowhere" in done.stderr


@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_nothing_confirmed_is_lost_over_many_kills_of_gateway_and_server(
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
    oracle = await crash.run_kills(
        tmp_path,
        seed=9,
        kills=amount(8, 12),
        load_s=(0.15, 1.2),
        at_least=500,
        extra=extra,
        strike=strike,
    )
    crash.check(oracle, "postgres, seed 9")


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(amount(2, 3)))
async def test_nothing_confirmed_is_lost_over_many_kills_on_sqlite(
    tmp_path: Path, seed: int
) -> None:
    oracle = await crash.run_kills(
        tmp_path, seed=seed, kills=amount(15, 30), load_s=(0.02, 1.2), at_least=500, extra=SQLITE
    )
    crash.check(oracle, f"sqlite, seed {seed}")
