"""A sink of a gateway, and the messages that it shall have: published and acknowledged, each confirmed before the call returns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from gateway_process import GatewayProcess
from wire import Frame, StompClient

QUEUE = "/queue/sink"


def sink_into(table: Path, **options: str) -> str:
    """The part of a configuration: a sink that stages and commits often, if *options* do not say otherwise."""
    keys = {
        "plugin": "spark",
        "table": str(table),
        "commit_interval": "200ms",
        "segment_interval": "100ms",
        **options,
    }
    return "\n[[sinks]]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items())


async def publish(port: int, first: int, count: int, *, destination: str = QUEUE) -> None:
    """Send ``m<first>`` and on, *count* messages."""
    async with _client(port) as client:
        for number in range(first, first + count):
            client.send("SEND", f"m{number}".encode(), destination=destination)


async def consume(port: int, count: int, *, destination: str = QUEUE) -> None:
    """Acknowledge *count* messages. Raises: EOFError, OSError when the gateway dies before."""
    left = count

    def is_last(_: Frame) -> bool:
        nonlocal left
        left -= 1
        return not left

    async with _client(port) as client:
        await _acknowledge(client, destination, is_last)


async def drain(port: int, *, destination: str = QUEUE) -> None:
    """Acknowledge all that is in the queue; a last message, which comes behind all others, tells the end."""
    async with _client(port) as client:
        client.send("SEND", b"end", destination=destination)
        await _acknowledge(client, destination, lambda frame: frame.body == b"end")


async def exchange(port: int, first: int, count: int, *, destination: str = QUEUE) -> None:
    """Publish, and acknowledge as many."""
    await publish(port, first, count, destination=destination)
    await consume(port, count, destination=destination)


async def _acknowledge(
    client: StompClient, destination: str, is_last: Callable[[Frame], bool]
) -> None:
    client.send("SUBSCRIBE", destination=destination, id="1", ack="client-individual")
    while True:
        frame = await client.receive()
        assert frame.command == "MESSAGE", frame
        client.send("ACK", id=frame.headers["ack"])
        if is_last(frame):
            return


@asynccontextmanager
async def _client(port: int) -> AsyncIterator[StompClient]:
    """Says goodbye, which confirms all that it sent."""
    client = await StompClient.connect(port)
    try:
        yield client
        client.send("DISCONNECT", receipt="done")
        await client.receipt("done")
    finally:
        await client.aclose()


def job_of(gateway: GatewayProcess) -> psutil.Process | None:
    """The sink's job, when it runs."""
    return _child(gateway, stages=False)


def stager_of(gateway: GatewayProcess) -> psutil.Process | None:
    """The process that stages rows, when it runs."""
    return _child(gateway, stages=True)


def _child(gateway: GatewayProcess, *, stages: bool) -> psutil.Process | None:
    for child in psutil.Process(gateway.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if ("tidegate_sink_spark.staging.worker" in child.cmdline()) == stages:
                return child
    return None


def running_job(gateway: GatewayProcess) -> psutil.Process:
    """The same, as soon as it runs."""
    deadline = time.monotonic() + 60
    while (job := job_of(gateway)) is None:
        assert time.monotonic() < deadline, gateway.tail()
        time.sleep(0.01)
    return job


def delta_commits(table: Path) -> int:
    """How many are in the table's log."""
    return len(list((table / "_delta_log").glob("*.json")))
