"""docs/operating.md: its commands do what is shown, its names are those of the contract."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main

from tidegate.cli import main
from tidegate.cli._app import app as tidegate
from tidegate.cli.groups.destinations import app
from tidegate.config import parse_config
from tidegate.spi import Action, Identity, Verdict
from tidegate.spi.operate import (
    PAGE_MAX,
    ConnectionSort,
    CursorSort,
    LimitScope,
    LimitSort,
    Request,
    SessionSort,
    SubscriptionSort,
    WaitReason,
)
from tidegate.testing.embedded import EmbeddedGateway
from tidegate_acl._reading import parse_rules

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
TEXT = DOCUMENT.read_text()


async def test_the_commands_print_what_the_document_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n')
    shown = re.search(r"```console\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    async with EmbeddedGateway(data_directory=tmp_path):
        for part in shown[1].split("$ tidegate ")[1:]:
            line, _, output = part.partition("\n")
            arguments = [*shlex.split(line), "--config", str(config)]
            assert await asyncio.to_thread(main, arguments) == 0, line
            assert trimmed(capsys.readouterr().out) == trimmed(output), line


def trimmed(text: str) -> list[str]:
    """Its lines without what only makes a table look like one."""
    words = (" ".join(line.replace("─", " ").split()) for line in text.splitlines())
    return [line for line in words if line]


def test_each_command_is_described_and_its_rights_are() -> None:
    commands = typer.main.get_group(app).commands
    for name in commands:
        rows = re.findall(rf"^\| [^|]*`{name}[` ]", TEXT, re.MULTILINE)
        assert len(rows) == 2, name


@pytest.mark.parametrize(
    "name", ["connection", "session", "subscription", "limit", "cursor", "access", "dlq"]
)
def test_each_command_of_a_group_is_described(name: str) -> None:
    group: Any = typer.main.get_command(tidegate)
    for command in group.get_command(typer.Context(group), name).commands:
        assert len(re.findall(rf"^\| `{name} {command}[ `]", TEXT, re.MULTILINE)) == 1, command


@pytest.mark.parametrize("command", ["show", "files", "why"])
def test_each_command_about_the_store_that_runs_is_described(command: str) -> None:
    assert len(re.findall(rf"^\| `store {command}[ `]", TEXT, re.MULTILINE)) == 1


def test_each_reason_to_wait_and_each_order_is_described() -> None:
    for reason in WaitReason:
        assert len(re.findall(rf"^\| `{reason.value}` \|", TEXT, re.MULTILINE)) == 1, reason
    for kind in (ConnectionSort, SessionSort, SubscriptionSort, LimitSort, CursorSort, LimitScope):
        for order in kind:
            named = rf"(--(sort|scope) |, |or )`?{order.value}`"
            is_default = order.value in ("name", "nearest")
            assert is_default or re.search(named, TEXT), order


def test_the_configuration_and_the_rule_are_right() -> None:
    tables, shown = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert len(parse_config(tables).destinations) == 3
    rules = parse_rules(shown)
    operator = Identity("local:tidegate", frozenset(), "", "", "operator")
    for action in (Action.ADMIN, Action.CREATE, Action.DELETE, Action.CONSUME, Action.PUBLISH):
        name = "" if action is Action.ADMIN else "queue://a"
        assert rules.decide(operator, action, name).verdict is Verdict.ALLOW
    assert not rules.warnings


def test_the_requests_are_requests() -> None:
    shown = re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        msgspec.convert(json.loads(line), type=Request)
    assert f"{PAGE_MAX:,} rows" in TEXT
