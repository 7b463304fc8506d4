"""``tidegate transactions``: what an operator does about prepared branches in doubt.

The commands open the store of a gateway that does not run, so nothing else can happen meanwhile;
while one runs they are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from rich.table import Table

from tidegate._logging import LogLevel, configure_logging
from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, Group, JsonOption
from tidegate.cli._host import plain_table
from tidegate.cli.groups._asking import moment
from tidegate.cli.groups._offline import offline
from tidegate.config import load_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import (
    Branch,
    BranchId,
    BranchState,
    GatewayError,
    RecoveredState,
    RequestError,
    Token,
    parse_branch_id,
)

if TYPE_CHECKING:
    from tidegate.gateway import Gateway

T = TypeVar("T")

app = typer.Typer(
    cls=Group,
    help="Prepared transactions (XA branches) of a stopped gateway.",
    no_args_is_help=True,
)

_BranchArgument = Annotated[
    str,
    typer.Argument(metavar="BRANCH", help="FORMAT:GLOBAL:QUALIFIER@PRINCIPAL, as listed."),
]

_STATES: Final = {
    BranchState.PREPARED: "in doubt",
    BranchState.COMMITTED: "committed",
    BranchState.ROLLED_BACK: "rolled back",
}


@app.command(name="list")
def list_branches(
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the branches that are prepared, and those that an operator completed.

    A commit sends the messages counted in MESSAGES, and acknowledges those counted in LOCKED.
    """

    async def listed(gateway: Gateway) -> tuple[RecoveredState, Sequence[Branch]]:
        assert gateway.recovered is not None
        return gateway.recovered, gateway.broker.branches.all_of()

    state, branches = _with_broker(config, listed)
    if as_json:
        _show.print_json([_described(branch, state) for branch in branches])
    elif branches:
        _show.make_console().print(_table(branches, state))
    else:
        typer.echo("no prepared transactions")


@app.command()
def commit(branch: _BranchArgument, config: ConfigOption = None) -> None:
    """Commit an in-doubt branch without its transaction manager.

    The messages that it sends can be consumed once the gateway runs again; those that it acknowledged
    are gone. The decision is remembered until the transaction manager, or `forget`, clears it.
    """
    _complete(branch, config, is_commit=True)


@app.command()
def rollback(branch: _BranchArgument, config: ConfigOption = None) -> None:
    """Roll back an in-doubt branch without its transaction manager.

    The messages that it sends are gone; those that it acknowledged are delivered again. The decision is
    remembered until the transaction manager, or `forget`, clears it.
    """
    _complete(branch, config, is_commit=False)


@app.command()
def forget(branch: _BranchArgument, config: ConfigOption = None) -> None:
    """Forget a branch that an operator committed or rolled back."""
    branch_id = _parsed(branch)

    async def forgotten(gateway: Gateway) -> None:
        answer = _Answer()
        gateway.broker.branches.forget(branch_id, answer, 0)
        await answer.future

    _with_broker(config, forgotten)
    typer.echo(f"forgotten: {branch_id}")


def _complete(branch: str, config: Path | None, *, is_commit: bool) -> None:
    branch_id = _parsed(branch)

    async def completed(gateway: Gateway) -> None:
        answer = _Answer()
        gateway.broker.branches.complete(branch_id, answer, 0, commit=is_commit, heuristic=True)
        await answer.future

    _with_broker(config, completed)
    typer.echo(f"{'committed' if is_commit else 'rolled back'}: {branch_id}")


def _parsed(text: str) -> BranchId:
    try:
        return parse_branch_id(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


class _Answer:
    """Waits for the broker's answer. Made inside the event loop."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirmed(self, tokens: list[Token]) -> None:
        """It is durable."""
        self.future.set_result(None)

    def failed(self, token: Token, error: GatewayError) -> None:
        """It is not."""
        self.future.set_exception(error)


def _with_broker(config: Path | None, work: Callable[[Gateway], Awaitable[T]]) -> T:
    """Do *work* on the broker of a gateway that nobody can connect to.

    Raises: StoreLockedError while the gateway runs; typer.BadParameter for what the broker refuses.
    """
    configure_logging(LogLevel.ERROR)
    plugins = PluginHost()
    resolved = resolve(load_config(config), plugins)
    why = "while the gateway is running, only the transaction manager can complete a transaction"
    try:
        return offline(resolved, plugins, work, progress=_silent, why=why)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from None


def _silent(what: str, done: int, total: int) -> None:
    """Of the recovery only the result is of interest."""


def _described(branch: Branch, state: RecoveredState) -> dict[str, object]:
    count = state.pending.get(branch.pending_list)
    return {
        "branch": str(branch.branch_id),
        "state": _STATES[branch.state],
        "prepared_at": moment(branch.prepared_at),
        "completed_at": moment(branch.completed_at) if branch.completed_at else None,
        "principal": branch.principal,
        "client_id": branch.client_id,
        "protocol": branch.protocol,
        "messages": count.messages if count else 0,
        "body_bytes": count.body_bytes if count else 0,
        "locked": sum(len(item.sequences) for item in branch.locked),
    }


def _table(branches: Sequence[Branch], state: RecoveredState) -> Table:
    keys = ("branch", "state", "prepared_at", "principal", "client_id", "messages", "locked")
    facts = [_described(branch, state) for branch in branches]
    rows = [[described[key] for key in keys] for described in facts]
    return plain_table([key.replace("_", " ") for key in keys], rows)
