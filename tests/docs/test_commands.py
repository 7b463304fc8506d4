"""Every command line that a document shows is one that the program takes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from tidegate.cli._app import app

ROOT: Final = Path(__file__).resolve().parents[2]
#: Not what changed and what was decided once: those speak of their own time.
DOCUMENTS: Final = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
#: A code span, or a line of a block; what is behind a comment or a pipe is not the command's.
SHOWN: Final = re.compile(r"(?:`|^\$? ?)tidegate ((?![0-9])[^`|#\n]+)", re.MULTILINE)
#: What `$SYS` says, not a command.
NOT_COMMANDS: Final = {"version"}


def shown(path: Path) -> list[str]:
    text = re.sub(r"\\\n\s*", "", path.read_text())
    return [
        line for line in SHOWN.findall(text) if line.split()[0].strip("`,.:;)") not in NOT_COMMANDS
    ]


@functools.cache
def named(name: str) -> Any:
    """A command of the program; None: there is none."""
    command: Any = typer.main.get_command(app)
    return command.get_command(typer.Context(command), name)


def problem(line: str) -> str:
    """What is wrong with the command line "tidegate *line*"; "": nothing."""
    words = [word.strip("[].,") for word in line.split()]
    if not re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return ""  # an option of the program itself, or a name for any command
    command, rest = named(words[0]), words[1:]
    if command is None:
        return f"no command {words[0]!r}"
    if rest and hasattr(command, "commands") and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        if rest[0] not in command.commands:
            return f"no command {words[0]} {rest[0]}"
        command = command.commands[rest[0]]
    known = {"--help"}.union(*(each.opts + each.secondary_opts for each in command.params))
    asked = {word.partition("=")[0] for word in rest if word.startswith("--")}
    return f"no option {sorted(asked - known)}" if asked - known else ""


def everything() -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        for line in shown(path):
            yield str(path.relative_to(ROOT)), line


def test_every_command_that_a_document_shows_is_there() -> None:
    lines = list(everything())
    assert len(lines) > 100
    wrong = {(where, line): said for where, line in lines if (said := problem(line))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stop", "no command 'stop'"),
        ("journal nonesuch FILE", "no command journal nonesuch"),
        ("destination list --nonesuch", "no option ['--nonesuch']"),
    ],
)
def test_what_is_not_there_is_found(line: str, said: str) -> None:
    assert problem(line) == said
