"""Spark reads a running gateway's log. One Java machine for all of it."""

import asyncio
from pathlib import Path

import pytest
from free_ports import free_port
from gateway_process import GatewayProcess
from spark_query import SparkQuery
from wire import StompClient

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

SINK = """
[[sinks]]
plugin = "flight"
bind = "127.0.0.1:{port}"
readers = {{ etl = "anonymous" }}
"""


async def acknowledged(port: int, numbers: range) -> None:
    """Send a message for each of *numbers*, and take all of them."""
    client = await StompClient.connect(port)
    for number in numbers:
        client.send("SEND", b"%d" % number, destination=f"/queue/orders.{number % 3}")
    for kind in range(3):
        client.send("SUBSCRIBE", id=str(kind), destination=f"/queue/orders.{kind}", ack="auto")
    for _ in numbers:
        assert (await client.receive()).command == "MESSAGE"
    client.send("DISCONNECT", receipt="bye")
    while (await client.receive()).command != "RECEIPT":
        pass
    client.close()


def test_spark_reads_batches_and_streams_into_delta_exactly_once(tmp_path: Path) -> None:
    port, table = free_port(), tmp_path / "table"
    gateway = GatewayProcess(tmp_path, extra=SINK.format(port=port))
    source = {"uri": f"grpc://127.0.0.1:{port}"}
    stream = {
        "options": {**source, "reader": "etl", "max_rows_per_batch": "300"},
        "table": str(table),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with SparkQuery(tmp_path / "spark.log") as spark, gateway:
        asyncio.run(acknowledged(gateway.stomp_port, range(600)))

        # Batches: all of it, a range, in partitions; nobody's position moves.
        all_rows = spark.ask("read", options={**source, "rows_per_partition": "200"})
        assert "error" not in all_rows, all_rows["error"]
        assert (all_rows["rows"], all_rows["distinct"], all_rows["last"]) == (600, 600, 600)
        assert all_rows["partitions"] == 3
        assert all_rows["destinations"] == [f"queue://orders.{kind}" for kind in range(3)]
        assert "ack_seq:bigint" in all_rows["schema"]
        assert "headers:map<string,string>" in all_rows["schema"]
        some = spark.ask("read", options={**source, "from": "11", "to": "20"})
        assert (some["rows"], some["first"], some["last"]) == (10, 11, 20)
        late = spark.ask("read", options={**source, "since": "2999-01-01T00:00:00Z"})
        assert late.get("rows") == 0, late

        # A stream, capped; the gateway is killed and comes back while it runs.
        assert spark.ask("stream", **stream) == {}
        spark.wait_for(600, table)
        gateway.kill()
        gateway.start()
        asyncio.run(acknowledged(gateway.stomp_port, range(600, 900)))
        spark.wait_for(900, table)
        ends = spark.ask("status")["ends"]
        assert max(b - a for a, b in zip([0, *ends], ends, strict=False)) <= 300
        spark.ask("stop")

        # From its checkpoint, until there is no more; what it committed has left the log.
        asyncio.run(acknowledged(gateway.stomp_port, range(900, 1200)))
        assert spark.ask("stream", **stream, once=True) == {}
        found = spark.ask("table", table=str(table))
        assert (found["rows"], found["distinct"], found["last"]) == (1200, 1200, 1200)
        gone = spark.ask("read", options={**source, "from": "1"})["error"]
        assert "rows 1 to" in gone
        assert "not in the log any more" in gone
