"""`tidegate dlq` against a real gateway: dead letters are grouped, and taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
from operating import Command
from wire import StompClient

from tidegate.cli._exit import ExitCode
from tidegate.testing.embedded import EmbeddedGateway

CONFIG = '[[destinations]]\nmatch = "queue://>"\nmax_deliveries = 1\n'


async def rejected(gateway: EmbeddedGateway, queue: str, count: int) -> None:
    """Send so many messages, and reject each."""
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SUBSCRIBE", id="s", destination=f"/queue/{queue}", ack="client-individual")
    for number in range(count):
        client.send("SEND", str(number).encode(), destination=f"/queue/{queue}")
        message = await client.receive()
        assert message.command == "MESSAGE"
        client.send("NACK", id=message.headers["ack"], receipt=str(number))
        await client.receipt(str(number))
    await client.aclose()


async def test_dead_letters_are_listed_grouped_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path, capsys)
    async with EmbeddedGateway(CONFIG, data_directory=tmp_path) as gateway:
        assert await command("dlq", "list") == (0, "no dead-letter queues\n")
        await rejected(gateway, "orders", 3)
        rows = await command.rows("dlq", "list")
        (queue,) = [row["destination"] for row in rows if row["pending"]]
        code, text = await command("dlq", "list")
        assert (code, queue in text) == (0, True)

        (group,) = await command.rows("dlq", "reasons", queue)
        assert (group["origin"], group["count"]) == ("queue://orders", 3)
        assert group["reason"]
        assert group["first_at"] <= group["last_at"]
        code, text = await command("dlq", "reasons", queue)
        assert (code, "queue://orders" in text) == (0, True)
        (some,) = await command.rows("dlq", "reasons", queue, "--limit", "1")
        assert some["count"] == 1
        found = await command.rows(
            "dlq", "retry", queue, "--selector", group["selector"] + " AND 1=2"
        )
        assert found["count"] == 0

        code, text = await command("dlq", "retry", queue, "--reason", "it's not this")
        assert (code, text) == (0, f"moved 0 dead letters of {queue} back.\n")
        code, text = await command("dlq", "retry", queue, "--from", "nowhere")
        assert (code, text) == (0, f"moved 0 dead letters of {queue} back.\n")
        matching = ("--reason", group["reason"], "--from", "orders", "--count", "2")
        code, text = await command("dlq", "retry", queue, *matching)
        assert (code, text) == (0, f"moved 2 dead letters of {queue} back.\n")
        (left,) = await command.rows("dlq", "reasons", queue)
        assert left["count"] == 1
        (orders,) = await command.rows("destination", "list", "orders")
        assert orders["pending"] == 2
        found = await command.rows("dlq", "retry", queue, "--selector", "missing IS NULL")
        assert found["count"] == 1
        assert await command("dlq", "reasons", queue) == (0, "no dead letters\n")

        await rejected(gateway, "bills", 4)
        await rejected(gateway, "mails", 2)
        code, text = await command("destination", "move", "DLQ.mails", "DLQ.bills")
        assert code == 0
        code, text = await command("dlq", "purge", "DLQ.bills", "--reason", "it's not this")
        assert (code, text) == (0, "purged 0 dead letters of queue://DLQ.bills.\n")
        code, text = await command("dlq", "purge", "DLQ.bills", "--from", "bills", "--keep", "1h")
        assert text.startswith("purged 4 dead letters of queue://DLQ.bills. They are kept in ")
        (left,) = await command.rows("dlq", "reasons", "DLQ.bills")
        assert left["origin"] == "queue://mails"
        (kept,) = await command.rows("destination", "purged")
        browsed = await command.rows("destination", "browse", kept["kept"])
        one = str(browsed[1]["sequence"])
        code, text = await command("destination", "undo", kept["kept"], "--message", one)
        assert text == f"brought back 1 messages of {kept['kept']}.\n"
        (number,) = [
            str(row["sequence"])
            for row in await command.rows("destination", "browse", "DLQ.bills")
            if ["original-destination", "queue://bills"] in row["headers"]
        ]
        code, text = await command("dlq", "retry", "DLQ.bills", "--message", number)
        assert (code, text) == (0, "moved 1 dead letters of queue://DLQ.bills back.\n")
        assert (await command.rows("dlq", "purge", "DLQ.bills"))["count"] == 2
        code, text = await command("dlq", "retry", queue, "--selector", "a = = b")
        assert code == ExitCode.CONFIG
        code, text = await command("dlq", "reasons", "nonesuch")
        assert (code, "there is no queue" in text) == (ExitCode.CONFIG, True)
