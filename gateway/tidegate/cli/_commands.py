"""Commands that plugins add: found by their entry points, imported when somebody types them.

See :mod:`tidegate.spi.commands` for the contract. A plugin that cannot be loaded costs only its own
commands: the help says what is wrong with it, and typing one of them says it as an error.
"""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tidegate.spi import PluginContractError, PluginError, PluginLoadError
from tidegate.spi.commands import COMMANDS_GROUP

_log = logging.getLogger("tidegate.cli")

#: Options that many commands have.
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="The configuration file; without it, the embedded default.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


#: Characters of a command's first sentence shown in the list of commands.
_SENTENCE_MAX: Final = 300


class Group(TyperGroup):
    """Commands whose help says a whole sentence of each: click cuts it to one line of 80 columns."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See click."""
        rows: list[tuple[str, str]] = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(_SENTENCE_MAX)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class OpenGroup(Group):
    """A group of commands to which plugins may add. Attributes: problems: of plugins left out."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.problems: list[PluginError] = []
        self._origins: dict[str, str] = {}

    def merge(self, entry_point: importlib.metadata.EntryPoint) -> None:
        """Add the commands that *entry_point* offers; remember what is wrong with them."""
        origin = _origin(entry_point)
        try:
            offered = _load(entry_point, origin)
            for name, command in offered.commands.items():
                if name in self.commands:
                    raise PluginContractError(
                        f"{COMMANDS_GROUP} {entry_point.name}",
                        f"{origin}: the command {self.name} {name} already exists; it "
                        f"comes from {self._origins.get(name, 'tidegate itself')}",
                    )
                self.commands[name] = command
                self._origins[name] = origin
            if not self.help:  # a group of this plugin's
                self.help, self.epilog = offered.help, offered.epilog
        except PluginError as error:
            self.problems.append(error)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click. Raises: PluginError when the command may be one of a plugin left out."""
        found = super().get_command(ctx, cmd_name)
        if found is None and self.problems:
            raise self.problems[0]
        return found

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """See click."""
        super().format_epilog(ctx, formatter)
        for problem in self.problems:
            formatter.write_paragraph()
            formatter.write_text(f"PROBLEM: {problem}")


class Commands(Group):
    """All commands: the host's own, and a group for each name that plugins give."""

    def list_commands(self, ctx: Any) -> list[str]:
        """See click: our own in their order, then those of plugins."""
        own = super().list_commands(ctx)
        return own + sorted({point.name for point in _installed()} - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click. The metadata of plugins is read only for a name that can be theirs."""
        own: Any = super().get_command(ctx, cmd_name)
        if own is not None and not isinstance(own, OpenGroup):
            return own
        group: OpenGroup | None = own
        for offer in _installed():
            if offer.name == cmd_name:
                if group is None:
                    group = OpenGroup(name=cmd_name, no_args_is_help=True, rich_markup_mode=None)
                group.merge(offer)
        if group is not None and own is None and list(group.commands) == [cmd_name]:
            return group.commands[cmd_name]
        return group


def open_typer(help_text: str) -> typer.Typer:
    """A Typer of the host's to which plugins may add."""
    return typer.Typer(cls=OpenGroup, rich_markup_mode=None, help=help_text, no_args_is_help=True)


def _installed() -> list[importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=COMMANDS_GROUP)
    return sorted(found, key=lambda point: (point.name, _origin(point)))


def _origin(entry_point: importlib.metadata.EntryPoint) -> str:
    distribution = entry_point.dist
    name = f"{distribution.name} {distribution.version}" if distribution else "an unknown package"
    return f"{name} (entry point {entry_point.value})"


_WANTED: Final = "expected a typer.Typer with commands"


def _load(entry_point: importlib.metadata.EntryPoint, origin: str) -> TyperGroup:
    what = f"{COMMANDS_GROUP} {entry_point.name}"
    try:
        offered: object = entry_point.load()
    except Exception as error:
        text = " ".join(str(error).split())
        raise PluginLoadError(
            what, f"{origin}: cannot be imported: {type(error).__name__}: {text}"
        ) from error
    if not isinstance(offered, typer.Typer):
        raise PluginContractError(what, f"{origin}: found {type(offered).__name__}; {_WANTED}")
    group = get_group(offered)
    if not group.commands:
        raise PluginContractError(what, f"{origin}: has no commands; {_WANTED}")
    return group
