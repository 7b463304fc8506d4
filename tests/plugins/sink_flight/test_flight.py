"""The Flight server of a real gateway, called by PyArrow's own client."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trustme
from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway
from tidegate_auth_file._hashes import make_hash

SINK = """
[[sinks]]
plugin = "flight"
bind = "127.0.0.1:0"
"""
ETL = 'readers = { etl = "anonymous" }\n'


class Client:
    """A Flight client; every call in a thread, because the gateway runs on this loop."""

    def __init__(self, gateway: EmbeddedGateway, **options: Any) -> None:
        uri = gateway.gateway.sink_addresses["flight"].replace("127.0.0.1", "localhost")
        self.client: Any = fl.FlightClient(uri, **options)
        self.options = fl.FlightCallOptions(timeout=60)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)

    async def log_in(self, user: str, password: str) -> None:
        header = await self.call(self.client.authenticate_basic_token, user, password)
        self.options = fl.FlightCallOptions(timeout=60, headers=[header])

    async def act(self, name: str, **values: object) -> dict[str, Any]:
        def act() -> dict[str, Any]:
            action = fl.Action(name, json.dumps(values).encode())
            (result,) = self.client.do_action(action, self.options)
            return json.loads(result.body.to_pybytes())

        return await self.call(act)

    async def info(self, **wanted: object) -> Any:
        descriptor = fl.FlightDescriptor.for_command(json.dumps(wanted).encode())
        return await self.call(self.client.get_flight_info, descriptor, self.options)

    async def table(self, **wanted: object) -> Any:
        info = await self.info(**wanted)

        def read() -> Any:
            found = [info.schema.empty_table()]
            for endpoint in info.endpoints:
                found.append(self.client.do_get(endpoint.ticket, self.options).read_all())
            return pa.concat_tables(found)

        return await self.call(read)

    async def rows(self, **wanted: object) -> list[dict[str, Any]]:
        return (await self.table(**wanted)).to_pylist()


async def acknowledged(
    gateway: EmbeddedGateway, count: int, *, size: int = 0, **login: str
) -> None:
    """Messages to two queues and a topic, all of them acknowledged."""
    client = await StompClient.connect(gateway.stomp_port, **login)
    places = ("/queue/open", "/queue/closed", "/topic/news")
    for number, place in enumerate(places):
        client.send("SUBSCRIBE", id=str(number), destination=place, ack="client")
    for number in range(count):
        client.send("SEND", b"%d" % number + bytes(size), destination=places[number % 3])
    for _ in range(count):
        message = await client.receive()
        assert message.command == "MESSAGE"
        client.send("ACK", id=message.headers["ack"])
    client.send("DISCONNECT", receipt="bye")
    while (await client.receive()).command != "RECEIPT":
        pass
    client.close()


async def test_ranges_positions_and_errors(tmp_path: Path) -> None:
    async with EmbeddedGateway(SINK + ETL, data_directory=tmp_path) as gateway:
        await acknowledged(gateway, 90)
        client = Client(gateway)
        rows = await client.rows(rows=20)
        assert [row["ack_seq"] for row in rows] == list(range(1, 91))
        assert sorted(int(row["body"]) for row in rows) == list(range(90))
        assert {row["outcome"] for row in rows} == {"acknowledged"}
        assert [r["ack_seq"] for r in await client.rows(**{"from": 11, "to": 20})] == [
            *range(11, 21)
        ]
        middle = rows[40]["acked_at"].isoformat()
        late = await client.rows(since=middle)
        assert [r["ack_seq"] for r in late] == [
            r["ack_seq"] for r in rows if r["acked_at"] >= rows[40]["acked_at"]
        ]
        early = await client.rows(until=middle, columns=["ack_seq"])
        assert len(early) + len(late) == 90
        assert set(early[0]) == {"ack_seq"} if early else True

        table = await client.table(columns=["destination", "body"])
        counted = duckdb.from_arrow(table).aggregate("destination, count(*)").order("destination")
        names = ("queue://closed", "queue://open", "topic://news")
        assert counted.fetchall() == [(name, 30) for name in names]

        # A plan is capped; a commit lets the log go; an older query is out.
        old = (await client.act("open", reader="etl"))["generation"]
        mine = (await client.act("open", reader="etl"))["generation"]
        plan = await client.act("plan", reader="etl", generation=mine, rows_max=50)
        assert plan["planned"] == 50
        where = {"reader": "etl", "epoch": plan["epoch"]}
        assert (await client.act("commit", **where, generation=mine, ack_seq=30))["first"] == 31
        for name, values in (
            ("plan", {"reader": "etl", "generation": old}),
            ("commit", {**where, "generation": old, "ack_seq": 40}),
        ):
            with pytest.raises(fl.FlightServerError, match="another query"):
                await client.act(name, **values)
        assert len(await client.rows(reader="etl")) == 60

        for wanted, problem in (
            ({"from": 5}, "rows 5 to 5 are not in the log any more: it has 31 to 90"),
            ({"begin": 5}, "begin"),
            ({"from": 40, "since": middle}, "name one"),
            ({"since": "yesterday"}, "is no time"),
            ({"columns": ["nothing"]}, "no column 'nothing'"),
        ):
            with pytest.raises(fl.FlightServerError, match=problem) as raised:
                await client.info(**wanted)
            assert "Traceback" not in str(raised.value)
            assert raised.value.extra_info == b"invalid"
        assert len(await client.rows(**{"from": 5, "skip": True})) == 60
        with pytest.raises(fl.FlightUnauthorizedError, match="no reader 'other' belongs to you"):
            await client.act("open", reader="other")

        # The gateway restarts: the position is where it was, the old query still is out.
        await gateway.restart()
        client = Client(gateway)
        view = await client.act("look", reader="etl")
        assert (view["committed"], view["planned"], view["first"]) == (30, 50, 31)
        with pytest.raises(fl.FlightServerError, match="another query"):
            await client.act("plan", reader="etl", generation=old)
        assert len(await client.rows()) == 60


USERS = (("ann", "one"), ("bob", "two"))
RULES = """
[[rules]]
allow = ["connect", "publish", "create", "consume", "subscribe"]
principals = "ann"
[[rules]]
allow = "connect"
principals = "bob"
[[rules]]
allow = "browse"
principals = "bob"
destinations = "queue://open"
"""


async def test_users_rights_and_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "users").write_text(
        "".join(f"{n}:{make_hash(p, memory_kib=64, time_cost=1).written()}\n" for n, p in USERS)
    )
    (tmp_path / "acl.toml").write_text(RULES)
    for name in ("both.pem", "users", "acl.toml"):
        (tmp_path / name).chmod(0o600)
    config = f"""
{SINK}
readers = {{ etl = "ann" }}
tls_certificate = "{tmp_path}/both.pem"
tls_key = "{tmp_path}/both.pem"
[[extensions]]
plugin = "auth-file"
users = "{tmp_path}/users"
[[extensions]]
plugin = "acl"
rules = "{tmp_path}/acl.toml"
check_interval = "100ms"
"""
    roots = authority.cert_pem.bytes()
    async with EmbeddedGateway(config, data_directory=tmp_path / "data") as gateway:
        await acknowledged(gateway, 30, login="ann", passcode="one")
        ann, bob, nobody = (Client(gateway, tls_root_certs=roots) for _ in range(3))
        for call in (nobody.info, ann.info):
            with pytest.raises(fl.FlightUnauthenticatedError):
                await call()
        await nobody.log_in(
            "ann", "wrong"
        )  # checked when it is used: only then is it known from where
        with pytest.raises(fl.FlightUnauthenticatedError) as raised:
            await nobody.info()
        assert "one" not in str(raised.value)
        await ann.log_in("ann", "one")
        await bob.log_in("bob", "two")

        # Rows that one may not see are not sent; whose reader it is, counts.
        assert len(await ann.rows()) == 30
        rows = await bob.rows()
        assert len(rows) == 10
        assert {row["destination"] for row in rows} == {"queue://open"}
        with pytest.raises(fl.FlightUnauthorizedError):
            await bob.act("open", reader="etl")
        await ann.act("open", reader="etl")

        # Rights that are taken back count at once, in the same session.
        (tmp_path / "acl.toml").write_text(RULES.replace('"queue://open"', '"queue://nothing"'))
        async with asyncio.timeout(60):
            while await bob.rows():
                await asyncio.sleep(0.05)
        (tmp_path / "acl.toml").write_text(RULES.replace('principals = "bob"', 'principals = "x"'))
        async with asyncio.timeout(60):
            while True:
                try:
                    await bob.rows()
                except fl.FlightUnauthenticatedError:
                    break
                await asyncio.sleep(0.05)


async def eventually(call: Callable[[], Any], error: type[Exception]) -> Any:
    """Until *call* does not raise *error* any more: the server learns of an end a moment later."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except error:
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_a_server_that_dies_is_started_again_and_a_stuck_reader_holds_nobody(
    tmp_path: Path,
) -> None:
    async with EmbeddedGateway(SINK + ETL, data_directory=tmp_path) as gateway:
        await acknowledged(gateway, 30, size=600_000)
        client = Client(gateway)
        assert len(await client.rows(columns=["ack_seq"])) == 30
        sink = gateway.gateway._sinks[0].sink
        first = sink._server.pid
        os.kill(first, signal.SIGKILL)
        few = partial(client.rows, columns=["ack_seq"])
        rows = await eventually(few, fl.FlightUnavailableError)
        assert len(rows) == 30
        assert sink._server.pid != first
        assert sink.health().running

        # A reader that reads nothing of 18 MB, and garbage: the gateway stops all the same.
        (endpoint,) = (await client.info()).endpoints
        stuck = await client.call(client.client.do_get, endpoint.ticket, client.options)
        _, writer = await asyncio.open_connection("127.0.0.1", sink._server.port)
        writer.write(os.urandom(1000))
        assert len(await few()) == 30
    assert stuck is not None
    writer.close()
