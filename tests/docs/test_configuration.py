"""docs/configuration.md says what is there: every option, command, exit code; examples parse."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tidegate.broker.operate.changing import LIVE, MADE_WITH
from tidegate.cli._app import app
from tidegate.cli._exit import ExitCode
from tidegate.cli._reference import block_names, host_tables, plugin_tables, update_document
from tidegate.config import parse_config
from tidegate.plugins import PROVIDERS, PluginHost
from tidegate.spi import parse_duration, parse_size
from tidegate_protocols.commands import mqtt, stomp

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
TEXT = DOCUMENT.read_text()
FLAT = " ".join(TEXT.split())


def test_every_option_of_the_host_and_of_our_plugins_is_documented_as_it_is() -> None:
    tables = host_tables() | plugin_tables(PluginHost())
    assert set(tables) <= set(block_names(TEXT)), "add an `options:` block for what is missing"
    assert update_document(TEXT, tables) == TEXT, (
        "run: tidegate option-tables --update docs/configuration.md"
    )


def test_no_option_table_is_empty_or_of_a_plugin_that_is_not_ours() -> None:
    assert "-->\n<!-- end -->" not in TEXT
    assert set(block_names(TEXT)) - set(host_tables()) <= set(PROVIDERS)


def test_every_example_is_a_configuration_that_parses() -> None:
    examples = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert examples
    for example in examples:
        parse_config(example)


def test_every_unit_string_in_the_text_is_read_by_the_parsers() -> None:
    sizes = re.search(r"\*\*Sizes\*\*.*?\.", TEXT, re.DOTALL)
    times = re.search(r"\*\*Times\*\*.*?\.", TEXT, re.DOTALL)
    assert sizes is not None
    assert times is not None
    found = [re.findall(r'`"([^"]+)"`', match[0]) for match in (sizes, times)]
    assert [len(strings) for strings in found] == [5, 6]
    assert all(parse_size(text) > 0 for text in found[0])
    assert all(parse_duration(text) > 0 for text in found[1])


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_every_exit_code_is_documented(code: ExitCode) -> None:
    assert re.search(rf"^\| {int(code)} \| \S", TEXT, re.MULTILINE)


COMMAND = typer.main.get_command(app)
COMMANDS = {
    name: command
    for name, command in COMMAND.commands.items()  # type: ignore[attr-defined]  # it is a group
    if not command.hidden
}
#: Those that come with `tidegate-protocols`.
OURS: dict[str, Any] = {
    "mqtt": typer.main.get_group(mqtt.app),
    "stomp": typer.main.get_group(stomp.app),
}
COMMANDS |= OURS


def test_the_commands_are_those_that_the_document_names() -> None:
    assert set(COMMANDS) == {
        "access",
        "bridges",
        "run",
        "check-config",
        "connection",
        "cursor",
        "destination",
        "dlq",
        "doctor",
        "drain",
        "events",
        "limit",
        "plugins",
        "reload",
        "session",
        "sink",
        "status",
        "store",
        "subscription",
        "top",
        "transactions",
        "undrain",
    } | set(OURS)
    assert COMMAND.help is not None
    assert COMMAND.help in FLAT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_is_in_the_document(name: str) -> None:
    command = COMMANDS[name]
    rows = [
        line for line in TEXT.splitlines() if line.startswith("|") and f"`tidegate {name}" in line
    ]
    assert command.help.split("\n")[0] in "\n".join(rows)
    for parameter in command.params:
        if "--help" in parameter.opts:
            continue
        described = [row for row in rows if parameter.help.rstrip(".") in row]
        if parameter.param_type_name == "argument":
            assert any(f"tidegate {name} {parameter.metavar}" in row for row in rows)
        else:
            assert described, parameter.opts
            for option in parameter.opts:
                assert any(option in row for row in described), option


def test_the_help_of_each_command_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from tidegate.cli import main

    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert COMMANDS[name].help.split("\n")[0] in capsys.readouterr().out


def test_the_lines_of_a_started_gateway_are_those_that_it_prints() -> None:
    from tidegate.cli import _run

    shown = re.search(r"```\n(listening: .*?)```", TEXT, re.DOTALL)
    assert shown is not None
    words = list(dict.fromkeys(line.partition(":")[0] for line in shown[1].splitlines()))
    source = Path(_run.__file__).read_text()
    assert words == ["listening", "store", "data directory", "sinks", "plugins"]
    assert all(f'"{word}: ' in source for word in words)


def test_options_of_the_broker_that_count_at_once_are_named() -> None:
    row = re.search(r"^\| `\[broker\]` \| at once: (.*?)\. All else", TEXT, re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`(\w+)`", row[1])) == LIVE
    made = re.search(r"What a list is made with, for new ones: (.*?)\. \|", TEXT)
    assert made is not None
    assert set(re.findall(r"`(\w+)`", made[1])) == set(MADE_WITH)
