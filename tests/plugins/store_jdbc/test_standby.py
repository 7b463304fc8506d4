"""Gateways on one PostgreSQL, each behind a proxy: the master's connection hangs or is cut, or it is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_network import Proxy
from crash_crew import amount
from jdbc_kit import prefix
from masters import Member, Strike, on_this_machine, struck_again_and_again
from postgres_server import PostgresServer


def behind(proxy: Proxy, server: PostgresServer, where: Path) -> str:
    """A ``[store]``: a lease that a standby need not wait for long, and that a busy machine does not break off."""
    return f"""
[store]
plugin = "jdbc"
url = "postgresql://127.0.0.1:{proxy.port}/tidegate"
user = "tidegate"
password_file = "{server.password_file}"
table_prefix = "{prefix(where)}"
lock_policy = "wait"
lock_renew_period = "100ms"
lock_expiration = "4s"
network_timeout = "4s"
"""


async def struck(server: PostgresServer, directory: Path, how: list[str]) -> None:
    async with Proxy(server.port) as first, Proxy(server.port) as second:
        one = on_this_machine(directory / "one", behind(first, server, directory))
        two = on_this_machine(directory / "two", behind(second, server, directory))
        proxies = {one: first, two: second}

        def away(*, is_cut: bool) -> Strike:
            async def strike(master: Member) -> None:
                """Its database is away until another one serves: then it sees that it was followed."""
                proxy = proxies[master]
                proxy.stalls = proxy.refuses = True
                if is_cut:
                    proxy.cut()
                standby = two if master is one else one
                assert standby.serving is not None
                await standby.serving
                proxy.stalls = proxy.refuses = False
                await master.has_given_way()

            return strike

        strikes: dict[str, Strike] = {
            "killed": Member.killed,
            "hangs": away(is_cut=False),
            "cut": away(is_cut=True),
        }
        took = await struck_again_and_again(one, two, [strikes[name] for name in how], seed=3)
    print(f"take_over_s={[(name, round(s, 2)) for name, s in zip(how, took, strict=True)]}")


@pytest.mark.long
async def test_a_master_whose_connection_hangs_is_followed_and_confirms_nothing_more(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    await struck(postgres, tmp_path, ["hangs"])


@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_nothing_confirmed_is_lost_over_many_masters(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    await struck(postgres, tmp_path, ["killed", "hangs", "cut"] * amount(4, 10))
