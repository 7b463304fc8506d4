"""`tidegate connection`, `session` and `subscription` against a real gateway with clients of both protocols."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mqtt_raw as raw
from operating import Command
from wire import MqttClient, StompClient

from tidegate.cli._exit import ExitCode
from tidegate.testing.embedded import EmbeddedGateway


async def test_connections_of_both_protocols_are_listed_shown_and_ended(
    gateway: EmbeddedGateway, command: Command
) -> None:
    assert await command("connection", "list") == (0, "no connections\n")
    stomp = await StompClient.connect(gateway.stomp_port)
    stomp.send("SUBSCRIBE", id="1", destination="/queue/a", ack="client", receipt="1")
    await stomp.receipt("1")
    mqtt = await MqttClient.connect(gateway.mqtt_port, "m")
    rows = await command.rows("connection", "list")
    assert sorted((row["protocol"], row["client_id"]) for row in rows) == [
        ("mqtt", "m"),
        ("stomp", ""),
    ]
    numbers = {row["protocol"]: str(row["number"]) for row in rows}
    assert {row["listener"] for row in rows} == set(gateway.addresses)
    code, text = await command("connection", "list", "--sort", "unread", "--limit", "1")
    assert (code, "waits for" in text) == (0, True)
    assert await command("connection", "list", "nobody") == (0, "no connections\n")

    code, text = await command("connection", "show", numbers["stomp"])
    assert code == 0
    assert "queue://a: 0 waiting" in text
    assert (await command.rows("connection", "show", numbers["mqtt"]))["row"]["client_id"] == "m"

    code, text = await command("connection", "end", numbers["stomp"])
    assert (code, text) == (0, f"ended connection {numbers['stomp']}.\n")
    answer = await stomp.receive()
    assert answer.command == "ERROR"
    assert "an operator ended the connection" in answer.headers["message"]
    assert [row["protocol"] for row in await command.rows("connection", "list")] == ["mqtt"]
    code, text = await command("connection", "end", numbers["stomp"])
    assert code == ExitCode.CONFIG
    assert "it may have ended" in text
    await stomp.aclose()
    mqtt.disconnect()


async def test_a_client_of_mqtt_5_hears_that_it_was_an_operator(
    gateway: EmbeddedGateway, command: Command
) -> None:
    def connect() -> raw.Client:
        client = raw.Client(gateway.mqtt_port, raw.V5)
        client.connect("five")
        return client

    client = await asyncio.to_thread(connect)
    (row,) = await command.rows("connection", "list", "five")
    assert (await command("connection", "end", str(row["number"])))[0] == 0
    assert (await asyncio.to_thread(client.receive, raw.DISCONNECT)).code == 0x98
    client.close()


async def test_names_that_clients_chose_are_harmless_on_a_terminal(
    gateway: EmbeddedGateway, command: Command
) -> None:
    client = await MqttClient.connect(gateway.mqtt_port, "\x1b[31mred", clean=False)
    await client.subscribe("t/\x1b[2J", 1)
    shown = ""
    for group in ("connection", "session", "subscription"):
        (row,) = await command.rows(group, "list")
        one = row.get("key", row.get("number"))
        for arguments in (("list",), ("show", str(one))):
            code, text = await command(group, *arguments)
            assert code == 0
            shown += text
    code, text = await command(
        "session", "delete", one_session(await command.rows("session", "list"))
    )
    assert code == ExitCode.CONFIG
    assert "red" in shown
    assert "\x1b" not in shown + text
    client.disconnect()


def one_session(rows: Any) -> str:
    (row,) = rows
    return row["key"]


async def test_sessions_and_subscriptions_are_deleted_for_good(
    gateway: EmbeddedGateway, command: Command
) -> None:
    for name in ("one", "two"):
        client = await MqttClient.connect(gateway.mqtt_port, name, clean=False)
        await client.subscribe("t", 1)
        client.disconnect()
    sender = await StompClient.connect(gateway.stomp_port)
    sender.send("SEND", b"x", destination="/topic/t", receipt="1")
    await sender.receipt("1")
    await sender.aclose()
    rows = await command.rows("session", "list", "--away", "--sort", "pending")
    assert [row["pending"] for row in rows] == [1, 1]
    keys = {row["client_id"]: row["key"] for row in rows}
    code, text = await command("session", "delete", keys["one"])
    assert (code, text) == (0, f"deleted session {keys['one']} with 1 pending messages.\n")
    (row,) = await command.rows("subscription", "list", "--durable")
    assert (row["client_id"], row["filter"], row["pending"]) == ("two", "topic://t", 1)
    code, text = await command("subscription", "delete", str(row["number"]), "--json")
    assert (code, json.loads(text)["count"]) == (0, 1)
    await gateway.restart()
    assert await command("subscription", "list") == (0, "no subscriptions\n")
    assert [row["client_id"] for row in await command.rows("session", "list")] == ["two"]
    for name, present in (("one", False), ("two", True)):
        client = await MqttClient.connect(gateway.mqtt_port, name, clean=False)
        assert client.session_present is present
        client.disconnect()
