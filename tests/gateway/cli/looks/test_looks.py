"""`tidegate limit`, `cursor`, `access` and `plugins --running` against a real gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from operating import Command
from wire import StompClient

from tidegate.cli._exit import ExitCode
from tidegate.cli.looks.bridges import _BRIDGES
from tidegate.spi.operate import BridgeRow
from tidegate.testing.embedded import EmbeddedGateway


async def test_limits_and_what_is_held_are_shown(tmp_path: Path, command: Command) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        rows = await command.rows("limit", "list", "--sort", "name", "--limit", "3")
        assert [row["scope"] for row in rows] == ["connection", "gateway", "gateway"]
        code, text = await command("limit", "list", "connections_max", "--scope", "gateway")
        assert code == 0
        assert "the next connection is closed at once" in text
        assert "10000" in text
        assert await command("limit", "list", "--percent", "100") == (0, "no limits\n")
        code, text = await command("limit", "show")
        assert (code, "user anonymous" in text) == (0, True)
        assert (await command.rows("limit", "show", "anonymous"))["counts"]["connections"][
            "used"
        ] == 1
        code, text = await command("limit", "show", "nobody")
        assert (code, "nothing is held for" in text) == (ExitCode.CONFIG, True)
        await client.aclose()


async def test_cursors_are_listed(tmp_path: Path, command: Command) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        assert await command("cursor", "list") == (0, "no cursors\n")
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SEND", b"x", destination="/queue/a", receipt="1")
        await client.receipt("1")
        (row,) = await command.rows("cursor", "list", "--sort", "memory")
        assert (row["destination"], row["cursor"], row["pending"]) == ("queue://a", "store", 1)
        code, text = await command("cursor", "list", "queue://a")
        assert (code, "memory" in text) == (0, True)
        assert await command("cursor", "list", "--paging") == (0, "no cursors\n")
        await client.aclose()
        await asyncio.sleep(0)


async def test_who_may_do_what_is_said_by_the_rules_of_the_gateway_that_runs(
    tmp_path: Path, command: Command
) -> None:
    rules = tmp_path / "acl.toml"
    rules.write_text('[[rules]]\nallow = ["admin", "connect", "publish"]\n')
    text = f'[[extensions]]\nplugin = "acl"\nrules = "{rules}"\n'
    async with EmbeddedGateway(text, data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        code, shown = await command("access", "explain", "ann", "queue://a")
        assert code == 0
        assert "publish: allowed\n  acl: rule 1 (line 1): allows, to everybody" in shown
        assert "consume: refused\n  acl: none of the 1 rules matches" in shown
        found = await command.rows("access", "explain", "ann", "--group", "g", "--address", "::1")
        assert [one["verdict"] for one in found["decided"]] == ["allow", "allow"]
        assert found["groups"] == ["g"]
        (row,) = await command.rows("access", "list", "queue://a")
        assert (row["user"], row["connections"], row["verdicts"]["consume"]) == (
            "anonymous",
            1,
            "deny",
        )
        code, shown = await command("access", "list", "queue://a")
        assert (code, "consume, browse, create, delete" in shown) == (0, True)
        code, shown = await command("access", "explain", "ann", "a")
        assert (code, "neither queue" in shown) == (ExitCode.CONFIG, True)
        (rule,) = await command.rows("access", "rules")
        assert (rule["authorizer"], rule["source"], rule["line"]) == ("acl", str(rules), 1)
        assert (rule["allows"], rule["who"], rule["destinations"]) == (True, {}, None)
        code, shown = await command("access", "rules", "--action", "admin")
        assert (code, "everybody" in shown, "also decides" in shown) == (0, True, False)
        assert await command("access", "rules", "--action", "delete") == (0, "no rules\n")
        assert await command("access", "users") == (0, "no users are listed\n")
        await client.aclose()


async def test_where_nobody_decides_the_list_of_rules_says_so(
    tmp_path: Path, command: Command
) -> None:
    async with EmbeddedGateway(data_directory=tmp_path):
        said = "no rules\nNo authorizer is configured: everything is allowed.\n"
        assert await command("access", "rules") == (0, said)


async def test_plugins_of_the_gateway_that_runs_are_listed_with_what_is_set(
    tmp_path: Path, command: Command
) -> None:
    text = '[store]\nplugin = "journal"\njournal_max_file_length = "4mb"\n'
    async with EmbeddedGateway(text, data_directory=tmp_path):
        rows = {
            (row["kind"], row["name"]): row for row in await command.rows("plugins", "--running")
        }
        store = rows["store", "journal"]
        assert store["is_active"]
        (part,) = store["parts"]
        assert part["options"]["journal_max_file_length"] == '"4mb"'
        assert not rows["store", "jdbc"]["is_active"]
        code, shown = await command("plugins", "--running")
        assert (code, 'store: journal_max_file_length = "4mb"' in shown) == (0, True)


async def test_a_database_is_shown_with_its_files_and_who_has_it(
    tmp_path: Path, command: Command
) -> None:
    async with EmbeddedGateway('[store]\nplugin = "jdbc"\n', data_directory=tmp_path):
        found = await command.rows("store", "show")
        assert "files" not in found["offers"]
        kinds = [part["kind"] for part in found["parts"]]
        assert kinds == ["database file", "write-ahead log", "lease"]
        code, text = await command("store", "show")
        assert code == 0
        for words in ("write-ahead log", "pages of 4096 bytes", "held by", "unless it is renewed"):
            assert words in " ".join(text.split())
        code, text = await command("store", "files")
        assert (code, "does not list its files" in text) == (ExitCode.CONFIG, True)


async def test_the_store_says_how_large_it_is_and_why_it_keeps_a_file(
    tmp_path: Path, command: Command
) -> None:
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SEND", b"x", destination="/queue/a", receipt="1")
        await client.receipt("1")
        found = await command.rows("store", "show")
        assert (found["messages"], found["is_writable"], found["problem"]) == (1, True, "")
        assert "files" in found["offers"]
        code, text = await command("store", "show")
        assert (code, "no sinks" in text) == (0, True)
        rows = await command.rows("store", "files")
        assert rows[0]["state"] == "current"
        (kept,) = [row for row in rows if row["references"]]
        assert [row["name"] for row in await command.rows("store", "files", kept["name"])] == [
            kept["name"]
        ]
        (holder,) = (await command.rows("store", "why", kept["name"]))["holders"]
        assert (holder["kind"], holder["destination"], holder["messages"]) == (
            "queue",
            "queue://a",
            1,
        )
        code, text = await command("store", "why", kept["name"])
        assert (code, "queue://a" in text) == (0, True)
        code, text = await command("store", "files", "--sort", "sparse", "--limit", "1")
        assert (code, "alive" in text) == (0, True)
        code, text = await command("store", "why", "nothing")
        assert (code, "no file 'nothing'" in text) == (ExitCode.CONFIG, True)
        await client.aclose()


def test_a_bridges_problem_says_when_it_was_and_that_it_is_over() -> None:
    names = ("old", "in", "in", "stomp://x", "/queue/a", "queue://a")
    lost = BridgeRow(
        *names, "", 0, 0, 0, 0, 0, 0, "refused", "start it", problem_at=1_700_000_000_000_000
    )
    back = msgspec.structs.replace(lost, server="ActiveMQ/6")
    column = dict(_BRIDGES)["last problem"]
    assert column(lost) == "refused: start it (2023-11-14 22:13:20Z)"
    assert column(back) == "over (2023-11-14 22:13:20Z): refused"
    assert column(msgspec.structs.replace(lost, problem="")) == ""
