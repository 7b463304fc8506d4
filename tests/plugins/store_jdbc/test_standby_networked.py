"""Two gateways, their PostgreSQL and their clients, each on a machine of its own: links that are cut, deaf, slow, lossy."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_crew import amount
from hosted import FailingOver, HostedMember, two_members
from jdbc_kit import prefix
from masters import Member, Strike, struck_again_and_again
from namespaces import Host, Network
from postgres_server import PostgresServer


class Site(NamedTuple):
    """Machines, what runs on them, and the network between them."""

    network: Network
    database: Host
    clients: Host
    one: HostedMember
    two: HostedMember


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(hosts=4) as made:
        yield made


@pytest.fixture(scope="module")
def server(network: Network) -> Iterator[PostgresServer]:
    host = network.hosts[0]
    made = PostgresServer(host.address)
    host.inside(made.__enter__)
    yield made
    made.__exit__()


@pytest.fixture
async def site(network: Network, server: PostgresServer, tmp_path: Path) -> AsyncIterator[Site]:
    database, clients, *hosts = network.hosts
    store = f"""
[store]
plugin = "jdbc"
url = "{server.url}"
user = "tidegate"
password_file = "{server.password_file}"
table_prefix = "{prefix(tmp_path)}"
lock_policy = "wait"
lock_renew_period = "100ms"
lock_expiration = "4s"
network_timeout = "4s"
"""
    async with two_members(network, hosts, clients, tmp_path, store) as members:
        yield Site(network, database, clients, *members)


async def struck(site: Site, how: list[str]) -> None:
    """The master's link to the database fails, or it dies: another follows, and clients get all, also those that fail over."""
    network, database, clients, one, two = site

    def away(fails: Callable[[HostedMember], None]) -> Strike:
        async def strike(master: Member) -> None:
            """Its links are as they were only when another one serves: then it sees that it was followed."""
            assert isinstance(master, HostedMember)
            fails(master)
            standby = two if master is one else one
            assert standby.serving is not None
            await standby.serving
            network.restore()
            master.signal(signal.SIGCONT)
            await master.has_given_way()

        return strike

    def asleep(master: HostedMember) -> None:
        master.signal(signal.SIGSTOP)
        network.cut(master.host, database)

    strikes: dict[str, Strike] = {
        "killed": Member.killed,
        "cut": away(lambda master: network.cut(master.host, database)),
        "deaf": away(lambda master: network.drop(database, master.host)),
        "mute": away(lambda master: network.drop(master.host, database)),
        "alone": away(lambda master: network.cut(master.host, database, clients)),
        "asleep": away(asleep),
    }
    async with FailingOver(clients, [one, two]) as others:
        took = await struck_again_and_again(
            one, two, [strikes[name] for name in how], seed=7, at_last=others.account
        )
    print(f"take_over_s={[(name, round(s, 2)) for name, s in zip(how, took, strict=True)]}")


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_master_that_does_not_hear_its_database_is_followed_and_confirms_nothing_more(
    site: Site,
) -> None:
    await struck(site, ["deaf"])


@pytest.mark.crash
@pytest.mark.timeout(1800)
async def test_nothing_confirmed_is_lost_whatever_becomes_of_a_masters_links(site: Site) -> None:
    await struck(site, ["killed", "cut", "deaf", "mute", "alone", "asleep"] * amount(1, 4))


@pytest.mark.crash
@pytest.mark.timeout(900)
async def test_nothing_is_lost_on_links_that_are_slow_and_lose_much(site: Site) -> None:
    network, database, clients, one, two = site
    async with FailingOver(clients, [one, two]) as others:
        await one.start()
        await two.start()
        for near, far in ((database, one.host), (database, two.host), (clients, one.host)):
            await others.more(20)
            network.slow_down(far, "512kbit")
            network.drop(near, far, share=0.1)
            network.drop(far, near, share=0.1)
            await others.more(50)
            network.restore()
        await others.more(20)
        await others.account()
