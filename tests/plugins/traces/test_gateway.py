"""Traces at a gateway: a collector that hangs, a kill, and how rows of the table lead to traces."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import paho.mqtt.client as paho
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from gateway_process import GatewayProcess
from otlp_collector import Collector
from paho_recorder import Paho
from stomp_recorder import stomp_connect
from wire import StompClient

from tidegate.testing.embedded import EmbeddedGateway

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "traces.md"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = f"00-{TRACE}-00f067aa0ba902b7-01"


def traces(collector: Collector, *lines: str) -> str:
    head = ['[[extensions]]\nplugin = "traces"', f'endpoint = "{collector.endpoint}"']
    return "\n".join([*head, 'batch_interval = "50ms"', *lines])


async def test_messages_go_on_while_the_collector_hangs(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as collector:
        collector.proceed.clear()
        options = ("sample_ratio = 1.0", "rate_max = 100000", "queue_max = 20", "batch_max = 10")
        config = traces(collector, *options, 'stop_timeout = "0s"')
        async with EmbeddedGateway(f"[broker]\npersistent = false\n{config}\n") as gateway:
            client = await StompClient.connect(gateway.stomp_port)
            client.send("SUBSCRIBE", id="1", destination="/queue/a", ack="client-individual")
            # The first batch is on its way, for ever, before the rest comes.
            for number in range(20):
                client.send("SEND", b"x", destination="/queue/a", receipt=str(number))
            assert await asyncio.to_thread(collector.hanging.wait, 60)
            for number in range(20, 300):
                client.send("SEND", b"x", destination="/queue/a", receipt=str(number))
            got = {"MESSAGE": 0, "RECEIPT": 0}
            while got != {"MESSAGE": 300, "RECEIPT": 300}:
                frame = await client.receive()
                got[frame.command] += 1
                if frame.command == "MESSAGE":
                    client.send("ACK", id=frame.headers["ack"])
            client.send("DISCONNECT", receipt="bye")
            await client.receive()
            counts = gateway.gateway.broker.client_counts()
            assert counts["traces.waiting"] == 20
            assert counts["traces.sent"] == 0
            assert counts["traces.dropped"] >= 300 * 3 - 20 - 10 * 2
            assert counts["traces.open"] == 0
            client.close()
        told = [text for text in caplog.messages if "spans are dropped" in text]
        assert len(told) == 1


@pytest.mark.long
async def test_rows_lead_to_traces_by_the_documented_query(tmp_path: Path) -> None:
    (query,) = re.findall(r"```sql\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    with Collector() as collector:
        sink = '[[sinks]]\nplugin = "flight"\nbind = "127.0.0.1:0"\n'
        sink += 'readers = { etl = "anonymous" }\n'
        config = f"{sink}{traces(collector, 'sample_ratio = 0.0')}\n"
        async with EmbeddedGateway(config, data_directory=tmp_path) as gateway:
            client = await StompClient.connect(gateway.stomp_port)
            client.send("SUBSCRIBE", id="1", destination="/queue/a", ack="client-individual")
            for headers in ({"traceparent": SAMPLED}, {}):
                client.send("SEND", b"x", destination="/queue/a", **headers)
                client.send("ACK", id=(await client.receive()).headers["ack"])
            client.send("DISCONNECT", receipt="bye")
            await client.receive()
            client.close()
            (settle,) = await asyncio.to_thread(collector.named, "settle a")
            table = await asyncio.to_thread(read, gateway.gateway.sink_addresses["flight"])
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", table)
    connection.execute("CREATE TABLE messages AS SELECT * FROM rows")
    (row,) = connection.sql(query).to_arrow_table().to_pylist()
    assert row["trace_id"] == settle.trace == TRACE
    assert (row["destination"], row["outcome"]) == ("queue://a", "acknowledged")
    # The row says when the acknowledgement came, and so does the span that begins then.
    assert round(row["acked_at"].timestamp() * 1e6) == settle.began // 1000
    marked = "SELECT count(*) FROM messages WHERE headers['tracestate'] LIKE 'tidegate=%'"
    assert connection.execute(marked).fetchall() == [(1,)]


def read(address: str) -> Any:
    """All rows of the log."""
    client: Any = fl.FlightClient(address.replace("127.0.0.1", "localhost"))
    options = fl.FlightCallOptions(timeout=60)
    descriptor = fl.FlightDescriptor.for_command(json.dumps({}).encode())
    info = client.get_flight_info(descriptor, options)
    return pa.concat_tables(
        client.do_get(endpoint.ticket, options).read_all() for endpoint in info.endpoints
    )


@pytest.mark.long
@pytest.mark.interop
def test_a_trace_goes_on_after_a_kill(tmp_path: Path) -> None:
    with Collector() as collector:
        extra = traces(collector, "sample_ratio = 0.0")
        with GatewayProcess(tmp_path, extra=extra) as gateway:
            stomp, heard = stomp_connect(gateway)
            headers = {"traceparent": SAMPLED, "receipt": "r"}
            stomp.send("/queue/kept", b"x", headers=headers)
            heard.receipts.get(timeout=60)
            (send,) = collector.named("send kept")
            gateway.kill()
            gateway.start()
            with Paho(gateway.mqtt_port, "c", version=paho.MQTTv5) as mqtt:
                mqtt.subscribe("$share/g/$queue/kept", 1)
                pairs = dict(mqtt.next().properties.UserProperty)
            process, settle = collector.named("process kept", "settle kept")
            assert gateway.stop() == 0, gateway.tail()
    assert pairs["traceparent"] == f"00-{TRACE}-{send.id}-01"
    assert (process.trace, process.parent) == (TRACE, send.id)
    assert (settle.parent, settle.outcome) == (process.id, "acknowledged")
    assert process.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]
    assert [span.name for span in collector.spans].count("send kept") == 1


SINKS = """
[[sinks]]
plugin = "spark"
name = "lake"
engine = "deltalake"
table = "{0}/all"
commit_interval = "100ms"
segment_interval = "20ms"
exclude = ["queue://secret"]
[sinks.tables]
"queue://orders.>" = "{0}/orders"

[[sinks]]
plugin = "spark"
name = "secrets"
engine = "deltalake"
table = "{0}/secrets"
include = ["queue://secret"]
commit_interval = "100ms"
segment_interval = "20ms"
"""


@pytest.mark.long
async def test_the_last_span_says_in_which_table_the_row_is(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    bound = {"queue://a": "all", "queue://orders.eu": "orders", "queue://secret": "secrets"}
    with Collector() as collector:
        config = f"{SINKS.format(lake)}{traces(collector, 'sample_ratio = 0.0')}\n"
        async with EmbeddedGateway(config, data_directory=tmp_path / "data") as gateway:
            client = await StompClient.connect(gateway.stomp_port)
            # The first two acknowledge, the last one takes without.
            for number, destination in enumerate(bound):
                name, ack = destination[8:], ("client-individual", "auto")[number == 2]
                client.send("SUBSCRIBE", id=str(number), destination=f"/queue/{name}", ack=ack)
                for headers in ({}, {"traceparent": SAMPLED}, {}):
                    client.send("SEND", b"x", destination=f"/queue/{name}", **headers)
                    frame = await client.receive()
                    if ack != "auto":
                        client.send("ACK", id=frame.headers["ack"])
            client.send("DISCONNECT", receipt="bye")
            await client.receive()
            client.close()
            names = [destination[8:] for destination in bound]
            found = await asyncio.to_thread(
                collector.named,
                *(f"settle {name}" for name in names),
                *(f"commit {name}" for name in names),
            )
            counts = gateway.gateway.broker.client_counts()
    assert (counts["traces.rows"], counts["traces.rows_forgotten"]) == (0, 0)
    for settle, commit, destination in zip(found[:3], found[3:], bound, strict=True):
        assert (commit.trace, commit.parent, commit.links) == (TRACE, settle.id, settle.links)
        assert commit.began == settle.began
        table = bound[destination]
        assert commit.attributes["tidegate.table"] == str(lake / table)
        assert commit.attributes["tidegate.sink"] == ("secrets" if table == "secrets" else "lake")
        row = commit.attributes["tidegate.ack_seq"]
        assert destination in rows_of(lake / table)[row]
        version = commit.attributes.get("tidegate.table.version")
        if table == "orders":
            assert version is None, "only that of the main table is known"
        else:
            assert version is not None
            # The commit that it names is the one that brought the row, and it was over then.
            assert row in rows_of(lake / table, version)
            assert row not in rows_of(lake / table, version - 1)
            assert commit.ended // 1_000_000 >= committed_at(lake / table, version)
    names = [span.name for span in collector.spans if span.name.startswith("commit")]
    assert len(names) == 3, names


def rows_of(table: Path, version: int | None = None) -> dict[int, str]:
    """Destinations by number."""
    found = deltalake.DeltaTable(table, version).to_pyarrow_table(
        columns=["ack_seq", "destination"]
    )
    return dict(zip(found["ack_seq"].to_pylist(), found["destination"].to_pylist(), strict=True))


def committed_at(table: Path, version: int) -> int:
    """Milliseconds since the epoch."""
    # Not what delta-rs calls the history of the version: its timestamps are of the newest commits.
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    (info,) = (action["commitInfo"] for action in map(json.loads, lines) if "commitInfo" in action)
    return info["timestamp"]
