"""Two gateways with one journal and their clients, each on a machine of its own: the lock is a file's, the links are not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_crew import amount
from hosted import FailingOver, HostedMember, two_members
from masters import WAIT_S, Member, Strike, struck_again_and_again
from namespaces import Host, Network
from wire import Frame, StompClient


class Site(NamedTuple):
    """Machines, what runs on them, and the network between them."""

    network: Network
    clients: Host
    others: Host
    one: HostedMember
    two: HostedMember


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    (tmp_path / "shared").mkdir()
    store = f"""
[store]
plugin = "journal"
directory = "{tmp_path / "shared"}"
lock_policy = "wait"
lock_renew_period = "100ms"
lock_expiration = "4s"
"""
    with Network(hosts=4) as network:
        clients, others, *hosts = network.hosts
        async with two_members(network, hosts, clients, tmp_path, store) as members:
            yield Site(network, clients, others, *members)


async def struck(site: Site, how: list[str]) -> None:
    """The master dies or sleeps, or its clients lose it: clients get all, also those that fail over."""
    network, clients, _, one, two = site

    async def asleep(master: Member) -> None:
        """Unheard of for longer than its lease: it gives way as soon as it wakes up, whoever listens."""
        assert isinstance(master, HostedMember)
        master.signal(signal.SIGSTOP)
        network.cut(master.host, clients)
        await asyncio.sleep(4.5)  # no test of how fast anything is
        network.restore()
        master.signal(signal.SIGCONT)
        await master.has_given_way()

    async def killed_alone(master: Member) -> None:
        """Its clients do not hear of its end."""
        assert isinstance(master, HostedMember)
        network.cut(master.host, clients)
        await master.killed()
        standby = two if master is one else one
        assert standby.serving is not None
        await standby.serving
        network.restore()

    strikes: dict[str, Strike] = {
        "killed": Member.killed,
        "killed, alone": killed_alone,
        "asleep": asleep,
    }
    async with FailingOver(clients, [one, two]) as beside:
        took = await struck_again_and_again(
            one, two, [strikes[name] for name in how], seed=11, at_last=beside.account
        )
    print(f"take_over_s={[(name, round(s, 2)) for name, s in zip(how, took, strict=True)]}")


@pytest.mark.crash
@pytest.mark.timeout(1800)
async def test_nothing_confirmed_is_lost_whatever_becomes_of_a_master_and_its_links(
    site: Site,
) -> None:
    await struck(site, ["killed", "killed, alone", "asleep"] * amount(2, 6))


async def taken(client: StompClient, count: int) -> list[Frame]:
    client.send("SUBSCRIBE", destination="/queue/q", id="1", ack="client-individual")
    return [await client.receive() for _ in range(count)]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_master_that_clients_cannot_reach_stays_master_and_goes_on_with_the_others(
    site: Site,
) -> None:
    """The lock is on the disk: a standby that took over here would be a second master."""
    network, clients, others, one, two = site
    await one.start()
    await two.start()
    near = await one.client_on(clients, heart_beat="1000,0")
    far = await one.client_on(others)
    for number in range(3):
        far.send("SEND", b"%d" % number, destination="/queue/q", receipt=str(number))
        await far.receipt(str(number))
    came = await taken(near, 3)
    assert [frame.body for frame in came] == [b"0", b"1", b"2"]
    network.cut(one.host, clients)
    for frame in came:
        near.send("ACK", id=frame.headers["ack"])
    # Whom nothing is heard of for longer than its heart-beats is taken for gone; others get what it had.
    async with asyncio.timeout(WAIT_S):
        again = await taken(far, 3)
    assert [frame.body for frame in again] == [b"0", b"1", b"2"]
    for frame in again:
        far.send("ACK", id=frame.headers["ack"], receipt=frame.headers["ack"])
        await far.receipt(frame.headers["ack"])
    assert two.serving is not None
    assert not two.serving.done()
    network.restore()
    near.send("SEND", b"late", destination="/queue/q", receipt="late")
    with pytest.raises((OSError, EOFError, AssertionError)):  # it was let go
        await near.receipt("late")
    near.close()
    back = await one.client_on(clients)
    back.send("SEND", b"last", destination="/queue/q", receipt="last")
    await back.receipt("last")
    assert (await far.receive()).body == b"last"
    await back.aclose()
    await far.aclose()
    assert not two.serving.done()
