"""The configuration is read anew while clients are connected: all that can change does, or nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from free_ports import free_port

from tidegate.broker.operate.changing import LIVE, content
from tidegate.cli import main
from tidegate.config import BrokerConfig, load_config, resolve
from tidegate.gateway import Gateway
from tidegate.listening import Exchange, Listeners
from tidegate.operator_socket import OperatorClient
from tidegate.plugins import PluginHost
from tidegate.spi import RequestError
from tidegate.spi.operate import Change, ListEvents, ReloadConfiguration, Reloaded
from tidegate_protocols.stomp._front_end import StompFrontEnd


class World:
    """A gateway that runs on a file in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gw.toml"
        self.directory = directory
        self.first, self.second, self.third = free_port(), free_port(), free_port()
        self.broker_told: list[BrokerConfig] = []
        self.gateway: Any = None
        self._writers: list[asyncio.StreamWriter] = []

    def stomp(self, port: int, more: str = "") -> str:
        return f'[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:{port}"\n{more}\n'

    def write(self, *tables: str, broker: str = "") -> None:
        head = f'[broker]\ndata_directory = "{self.directory / "data"}"\n{broker}\n'
        self.path.write_text(head + "\n".join(tables))

    async def start(self, *tables: str, broker: str = "") -> None:
        self.write(*tables, broker=broker)
        plugins = PluginHost()
        resolved = resolve(load_config(self.path), plugins)
        self.gateway = Gateway(resolved, plugins, changed=self.broker_told.append)
        await self.gateway.start()

    async def reload(self, *tables: str, broker: str = "", check_only: bool = False) -> Reloaded:
        self.write(*tables, broker=broker)
        return await self.gateway.reload(check_only=check_only)

    async def connect(self, port: int) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        client = Client(reader, writer)
        client.send("CONNECT", "accept-version:1.2", "host:x")
        assert (await client.frame()).startswith("CONNECTED\n")
        return client

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        if self.gateway is not None:
            await self.gateway.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.came_before = 0  # messages that came before a receipt

    def send(self, command: str, *headers: str, body: str = "") -> None:
        head = "\n".join([command, *headers])
        self._writer.write(f"{head}\n\n{body}\0".encode())

    async def frame(self) -> str:
        async with asyncio.timeout(60):
            return (await self._reader.readuntil(b"\0"))[:-1].decode().lstrip("\n")

    async def confirmed(self, command: str, *headers: str, body: str = "") -> None:
        self.send(command, *headers, "receipt:r", body=body)
        while (frame := await self.frame()).startswith("MESSAGE\n"):
            self.came_before += 1
        assert frame.startswith("RECEIPT\n")

    async def publish(self, name: str, *bodies: str) -> None:
        for body in bodies:
            await self.confirmed("SEND", f"destination:/queue/{name}", body=body)

    async def ended(self) -> str:
        """What it is told before it is disconnected."""
        async with asyncio.timeout(60):
            return (await self._reader.read()).decode()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def test_what_a_reload_does_and_refuses_is_told(world: World) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    events = world.gateway.broker.events

    def told(after: int) -> list[tuple[str, object]]:
        rows = events.page(ListEvents(after)).rows
        return [(row.event.value, row.about.get("listener")) for row in rows]

    names = [name for name, _ in told(0)]
    assert names == ["store-recovered", "listener-added", "listener-added", "gateway-started"]
    after = events.last
    await world.reload(world.stomp(world.first), world.stomp(world.third))
    assert told(after) == [
        ("configuration-reloaded", None),
        ("listener-removed", f"stomp://127.0.0.1:{world.second}"),
        ("listener-added", f"stomp://127.0.0.1:{world.third}"),
    ]
    after = events.last
    with pytest.raises(RequestError):
        await world.reload(world.stomp(world.first, "no_such_option = 1"))
    await world.reload(world.stomp(world.first), check_only=True)
    assert told(after) == [("configuration-refused", None)]


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


QUEUE = '[[destinations]]\nmatch = "queue://jobs"\n'

TLS = """
[[listeners]]
protocol = "stomp"
bind = "127.0.0.1:0"
transport = "tls"
tls_certificate = "none.pem"
"""
WRONG = {
    "syntax": ("[[listeners]\n", "not valid TOML"),
    "an unknown key": ('[[destinations]]\nmatch = "a"\nmesages_max = 5\n', "mesages_max: unknown"),
    "a missing plugin": ('[[extensions]]\nplugin = "nowhere"\n', "nowhere"),
    "rules that are none": ('[[extensions]]\nplugin = "acl"\nrules = "rules.toml"\n', "rules.toml"),
    "a certificate that is not there": (TLS, "listeners[1]"),
    "two tables for one": (f"{QUEUE}{QUEUE}", "destinations[1].match"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_error_changes_nothing_and_is_told_with_its_place(world: World, name: str) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    (world.directory / "rules.toml").write_text('[[rules]]\nallow = "al"\n')
    before = world.gateway.config
    text, said = WRONG[name]
    with pytest.raises(RequestError) as caught:
        await world.reload(world.stomp(world.first), text, broker='log_level = "debug"')
    assert str(world.path) in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed")
    assert world.gateway.config is before
    assert world.broker_told == []
    await client.publish("jobs", "a")


async def test_a_listener_comes_and_goes_and_clients_of_the_others_stay(world: World) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    staying, leaving = await world.connect(world.first), await world.connect(world.second)
    await staying.confirmed("SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client")
    found = await world.reload(world.stomp(world.third), world.stomp(world.first))
    assert found.changed == (
        Change("listeners[0]", f"added: 127.0.0.1:{world.third}"),
        Change("listeners", f"removed: stomp://127.0.0.1:{world.second}"),
    )
    assert found.left == ()
    assert world.gateway.addresses == [
        f"stomp://127.0.0.1:{world.third}",
        f"stomp://127.0.0.1:{world.first}",
    ]
    told = await leaving.ended()
    assert told.startswith("ERROR\n")
    assert "was removed or changed; connect again" in told
    assert refuses(world.second)
    coming = await world.connect(world.third)
    await coming.publish("jobs", "hello")
    assert (await staying.frame()).endswith("\n\nhello")
    again = await world.gateway.reload()
    assert (again.changed, again.left) == ((), ())


async def test_what_a_leaving_client_sent_is_confirmed_before_it_goes(world: World) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    leaving = await world.connect(world.second)
    await leaving.publish("jobs", "a")
    leaving.send("SEND", "destination:/queue/jobs", "receipt:last", body="b")
    while world.gateway.broker.destinations.queues["queue://jobs"].cursor.size < 1:
        await asyncio.sleep(0)
    await world.reload(world.stomp(world.first))
    told = await leaving.ended()
    assert ("receipt-id:last" in told) is (
        world.gateway.broker.destinations.queues["queue://jobs"].cursor.size == 2
    )


async def test_a_listener_that_changes_listens_on_the_same_port_with_its_new_options(
    world: World,
) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    staying, leaving = await world.connect(world.first), await world.connect(world.second)
    found = await world.reload(
        world.stomp(world.first), world.stomp(world.second, "connections_max = 1")
    )
    assert found.changed == (Change("listeners[1]", f"changed: 127.0.0.1:{world.second}"),)
    assert (await leaving.ended()).startswith("ERROR\n")
    await world.connect(world.second)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.second)
    assert b"reached its limit of 1 connections" in await reader.read()
    writer.close()
    await staying.publish("jobs", "a")


async def test_one_that_cannot_bind_leaves_all_as_it_was(world: World) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    clients = [await world.connect(port) for port in (world.first, world.second)]
    with (
        socket.create_server(("127.0.0.1", world.third)),
        pytest.raises(RequestError, match=r"cannot listen on .*nothing was changed"),
    ):
        await world.reload(
            world.stomp(world.third),
            world.stomp(world.first, "connections_max = 7"),
            QUEUE + "messages_max = 1\n",
            broker='log_level = "debug"',
        )
    assert world.gateway.broker.destinations.policy("queue://jobs").messages_max == 0
    assert world.broker_told == []
    for client in clients:
        await client.publish("jobs", "a")
    for port in (world.first, world.second):
        await world.connect(port)


async def test_one_in_the_place_of_another_that_cannot_bind_gives_it_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(world.stomp(world.first), world.stomp(world.second))
    clients = [await world.connect(port) for port in (world.first, world.second)]
    start, failures = StompFrontEnd.start, [OSError(98, "in use")]

    async def fails_once(self: StompFrontEnd) -> str:
        if failures:
            raise failures.pop()
        return await start(self)

    monkeypatch.setattr(StompFrontEnd, "start", fails_once)
    with pytest.raises(RequestError, match="in use; free the address"):
        await world.reload(
            world.stomp(world.first), world.stomp(world.second, "connections_max = 1")
        )
    for client in clients:
        await client.publish("jobs", "a")
    for _ in range(2):  # as many as before
        await world.connect(world.second)
    await world.gateway.stop()
    assert [(await client.ended())[:6] for client in clients] == ["ERROR\n"] * 2


async def test_a_limit_counts_at_once_on_a_queue_with_messages(world: World) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    await client.publish("jobs", *"abcdefgh")
    found = await world.reload(
        world.stomp(world.first), QUEUE + 'messages_max = 3\noverflow = "drop_oldest"\n'
    )
    assert found.changed == (Change("destinations[0]", "added: 'queue://jobs'"),)
    await client.publish("jobs", "i")
    consumer = await world.connect(world.first)
    consumer.send("SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client")
    assert [(await consumer.frame())[-1] for _ in range(3)] == ["g", "h", "i"]
    await world.reload(world.stomp(world.first), QUEUE + 'messages_max = 3\noverflow = "refuse"\n')
    client.send("SEND", "destination:/queue/jobs", "receipt:r", body="j")
    assert "which is its limit (messages_max)" in await client.frame()
    await world.reload(world.stomp(world.first), QUEUE + 'messages_max = 4\noverflow = "refuse"\n')
    other = await world.connect(world.first)
    await other.publish("jobs", "k")
    await world.reload(world.stomp(world.first))
    await other.publish("jobs", *"lmnop")
    assert [(await consumer.frame())[-1] for _ in range(6)] == [*"klmnop"]


async def test_producers_that_wait_for_room_go_on_when_there_is_no_limit_any_more(
    world: World,
) -> None:
    slow = QUEUE + 'messages_max = 2\noverflow = "slow"\n'
    await world.start(world.stomp(world.first), slow)
    client = await world.connect(world.first)
    await client.publish("jobs", "a", "b")
    for number in range(6):
        client.send("SEND", "destination:/queue/jobs", f"receipt:{number}", body="c")
        await asyncio.sleep(0)
    while not world.gateway.broker.flow.full_lists:
        await asyncio.sleep(0.01)
    await world.reload(world.stomp(world.first))
    for number in range(6):
        assert f"receipt-id:{number}" in await client.frame()


async def test_an_age_that_is_taken_away_drops_nothing(world: World) -> None:
    await world.start(world.stomp(world.first), QUEUE + 'age_max = "1h"\n')
    client = await world.connect(world.first)
    await client.publish("jobs", "a", "b")
    await world.reload(world.stomp(world.first), QUEUE + "messages_max = 10\n")
    core = world.gateway.broker
    core.limits.look(core.now() + 7_200_000_000)
    assert core.destinations.queues["queue://jobs"].cursor.size == 2
    await world.reload(world.stomp(world.first), QUEUE + 'age_max = "1min"\n')
    core.limits.look(core.now() + 7_200_000_000)
    assert core.destinations.queues["queue://jobs"].cursor.size == 0


async def test_all_that_the_store_has_is_counted_wherever_it_is(world: World) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    await client.publish("jobs", *"abcdefgh")
    consumer = await world.connect(world.first)
    consumer.send(
        "SUBSCRIBE", "destination:/queue/jobs", "id:1", "ack:client-individual", "prefetch-count:5"
    )
    frames = [await consumer.frame() for _ in range(5)]
    acks = [line[4:] for f in frames for line in f.split("\n") if line.startswith("ack:")]
    await consumer.confirmed("BEGIN", "transaction:t")
    for ack in acks[:2]:
        await consumer.confirmed("ACK", f"id:{ack}", "transaction:t")
    core = world.gateway.broker
    queue = core.destinations.queues["queue://jobs"]
    while core.writer.turns_under_way()[-1].operations:
        await asyncio.sleep(0)
    assert content(core, queue) == 8
    await world.reload(world.stomp(world.first), QUEUE + "messages_max = 100\n")
    limit = core.limits._by_id[queue.id]
    assert limit.count == 8
    await consumer.confirmed("ACK", f"id:{acks[2]}")
    assert limit.count == 7
    await consumer.confirmed("COMMIT", "transaction:t")
    assert limit.count == 5


async def test_bytes_are_limited_where_they_are_known(world: World) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    await client.publish("jobs", "a")
    table = '[[destinations]]\nmatch = "queue://*"\nbytes_max = "2b"\noverflow = "refuse"\n'
    found = await world.reload(world.stomp(world.first), table)
    (left,) = found.left
    assert left.key == "destinations[0].bytes_max"
    assert "for 1 existing ones at the next start" in left.what
    await client.publish("jobs", "bcd")
    await client.publish("other", "ab")
    client.send("SEND", "destination:/queue/other", "receipt:r", body="c")
    assert "(bytes_max)" in await client.frame()


async def test_what_a_queue_is_made_with_counts_for_new_ones_and_is_named(world: World) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    await client.publish("jobs", "a")
    table = '[[destinations]]\nmatch = "queue://*"\nmemory_limit = "1mb"\n'
    checked = await world.reload(world.stomp(world.first), table, check_only=True)
    found = await world.gateway.reload()
    assert found == checked
    assert [change.key for change in found.left] == ["destinations[0].memory_limit"]
    again = await world.gateway.reload()
    assert (again.changed, again.left) == ((), ())


async def test_what_nothing_is_there_for_is_named(world: World) -> None:
    """Nobody has asked for spools at the start, so there are none."""
    await world.start(world.stomp(world.first))
    table = QUEUE + 'non_persistent = "spool"\n'
    checked = await world.reload(world.stomp(world.first), table, check_only=True)
    found = await world.gateway.reload()
    assert found == checked
    assert found.left == (
        Change("destinations[0].non_persistent", "takes effect at the next start"),
    )


async def test_a_queue_that_is_made_while_it_reloads_has_the_new_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(world.stomp(world.first))
    client = await world.connect(world.first)
    begin = Listeners.begin

    async def publish_first(self: Listeners, exchange: Exchange) -> None:
        await client.publish("jobs", "a", "b")
        await begin(self, exchange)

    monkeypatch.setattr(Listeners, "begin", publish_first)
    await world.reload(world.stomp(world.first), QUEUE + 'messages_max = 2\noverflow = "refuse"\n')
    client.send("SEND", "destination:/queue/jobs", "receipt:r", body="c")
    assert "which is its limit (messages_max)" in await client.frame()


async def test_a_queue_that_the_file_declares_is_made(world: World) -> None:
    await world.start(world.stomp(world.first))
    await world.reload(world.stomp(world.first), QUEUE + "auto_create = false\n")
    assert "queue://jobs" in world.gateway.broker.destinations.queues
    client = await world.connect(world.first)
    await client.publish("jobs", "a")


async def test_options_of_the_broker_and_quotas_count_and_the_rest_is_named(world: World) -> None:
    await world.start(world.stomp(world.first), broker='name = "one"')
    client = await world.connect(world.first)
    found = await world.reload(
        world.stomp(world.first),
        '[store]\nplugin = "journal"\ncheckpoint_interval = "7s"\n',
        "[[quotas]]\nprincipal = '*'\nqueues_max = 1\n",
        broker='name = "two"\nqueues_max = 5\nlog_level = "debug"\nconnections_max = 2\n',
    )
    assert {change.key for change in found.changed} == {
        "broker.queues_max",
        "broker.log_level",
        "broker.connections_max",
        "quotas",
    }
    assert {change.key for change in found.left} == {"broker.name", "store.checkpoint_interval"}
    assert [told.log_level for told in world.broker_told] == ["debug"]
    assert world.gateway.broker.name == "one"
    await client.publish("jobs", "a")
    other = await world.connect(world.first)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.first)
    assert await reader.read() == b""
    writer.close()
    await other.publish("jobs", "a")


def test_every_option_that_counts_at_once_is_one() -> None:
    assert set(BrokerConfig.__dataclass_fields__) >= LIVE


async def test_extensions_that_run_decide_who_may_come_in(world: World) -> None:
    """The file has no users any more, which counts with the next start: until then nobody comes in without."""
    users = world.directory / "users"
    users.touch(0o600)
    users.write_text("alice:{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=\n")
    await world.start(
        world.stomp(world.first), '[[extensions]]\nplugin = "auth-file"\nusers = "users"\n'
    )
    found = await world.reload(world.stomp(world.first), world.stomp(world.second))
    assert [change.key for change in found.left] == ["extensions[0]"]
    reader, writer = await asyncio.open_connection("127.0.0.1", world.second)
    writer.write(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
    async with asyncio.timeout(60):
        assert (await reader.read()).startswith(b"ERROR\n")
    writer.close()


async def test_an_operators_listener_changes_with_the_next_start(world: World) -> None:
    await world.start(world.stomp(world.first))
    admin = f'[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:{world.third}"\n'
    found = await world.reload(world.stomp(world.first), admin)
    assert found.changed == ()
    assert [change.key for change in found.left] == ["listeners[1]"]
    assert refuses(world.third)


async def test_it_is_a_request_and_a_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.start(world.stomp(world.first))
    config = ["--config", str(world.path)]
    assert await asyncio.to_thread(main, ["reload", *config]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"
    world.write(world.stomp(world.first), QUEUE, broker='name = "two"')
    assert await asyncio.to_thread(main, ["reload", "--check", *config]) == 0
    shown = capsys.readouterr().out
    assert shown == (
        "destinations[0]: added: 'queue://jobs'\nnot changed: broker.name: takes effect at the next start\n"
    )
    assert await asyncio.to_thread(main, ["reload", "--json", *config]) == 0
    assert json.loads(capsys.readouterr().out)["changed"][0]["key"] == "destinations[0]"
    world.write("[[destinations]]\nmatch = 5\n")
    text = await asyncio.to_thread(_ask, world.directory / "data")
    assert "destinations[0].match" in text
    assert "nothing was changed" in text


def _ask(directory: Path) -> str:
    with OperatorClient(directory) as client:
        reply = client.ask(ReloadConfiguration())
    assert reply.error is not None
    assert reply.error.kind == "RequestError"
    return reply.error.problem


async def test_a_certificate_that_has_ended_is_told_at_the_start_and_at_a_reload(
    world: World,
) -> None:
    pem, ca = world.directory / "server.pem", trustme.CA()

    def write(days: int) -> int:
        ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days)
        leaf = ca.issue_cert("localhost", not_before=ends - timedelta(90), not_after=ends)
        pem.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        pem.chmod(0o600)
        return int(ends.timestamp()) * 1_000_000

    tls = world.stomp(world.first, f'transport = "tls"\ntls_certificate = "{pem}"')
    ended = write(-1)
    await world.start(tls)
    desk = world.gateway._desk
    assert [one.ends_at for one in desk.overview().certificates] == [ended]
    readiness = desk.readiness()
    assert readiness.is_ready
    assert "a certificate has expired" in readiness.warnings[0]
    events = world.gateway.broker.events
    assert events.snapshot()["events.certificate-invalid.count"] == 1
    write(60)
    for check_only in (True, False):
        assert (await world.reload(tls, check_only=check_only)).warnings == ()
    assert desk.readiness().warnings == ()
    last = write(7)
    found = await world.reload(tls)
    (warning,) = found.warnings
    assert warning.key == "listeners[0].tls_certificate"
    assert f"{pem}: " in warning.what
    assert " expires at " in warning.what
    assert events.snapshot()["events.certificate-ends.count"] == 1
    # What cannot be read leaves the certificate in use, and its dates.
    pem.write_text("renewed tomorrow")
    with pytest.raises(RequestError, match="contains no certificate"):
        await world.reload(tls)
    assert [one.ends_at for one in desk.overview().certificates] == [last]
