"""``tidegate reload``, ``drain``, ``undrain``: change the gateway that runs."""

from __future__ import annotations

import time
from typing import Annotated, Final

import msgspec
import typer

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli._host import Bars
from tidegate.cli.groups._asking import ask, connected
from tidegate.operator_socket import OperatorClient
from tidegate.spi import format_size, parse_duration
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import (
    Drain,
    DrainState,
    HandOver,
    HandOverPhase,
    LeftKind,
    ReloadConfiguration,
    Reloaded,
    ShowDrain,
    Undrain,
)
from tidegate.spi.printable import printable

#: How often the progress of a drain is checked, and how long it may take to disconnect clients when its time is over.
_LOOK_EVERY_S: Final = 0.2
_BEHIND_S: Final = 30.0


def drain(
    config: ConfigOption = None,
    server_reference: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The server that clients are told to use instead."),
    ] = "",
    moved: Annotated[
        bool, typer.Option("--moved", help="Tell clients that the move is permanent.")
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(help="How long clients may take to acknowledge what was delivered to them."),
    ] = "30s",
    hand_over: Annotated[
        str,
        typer.Option(
            metavar="BRIDGE",
            help="Then send what is waiting in every queue to another broker over this "
            "bridge, and wait until it has arrived.",
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Accept no new clients, and wait until the connected ones are gone.

    Each client is disconnected once it has acknowledged its messages, or after --timeout. The gateway can then
    be stopped without interrupting anybody; `tidegate undrain` accepts clients again. With --hand-over the command
    also waits until every queue is empty; exit code 8: some messages could not be handed over.
    """
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as error:
        raise typer.BadParameter(f"--timeout: {error}") from None
    ends_at = time.monotonic() + timeout_s + _BEHIND_S
    with connected(config) as client:
        found = ask(client, Drain(server_reference, moved, timeout_s, hand_over), DrainState)
        while found.connections:
            if time.monotonic() > ends_at or not found.is_draining:
                raise ClientError(
                    f"{found.connections} clients are still connected; no new ones are accepted"
                )
            time.sleep(_LOOK_EVERY_S)
            found = ask(client, ShowDrain(), DrainState)
        if hand_over:
            found = _handed_over(client, hand_over)
    _print_drain(found, as_json=as_json)
    if found.hand_over is not None:
        queues = [left for left in found.hand_over.left if left.kind is LeftKind.QUEUE]
        if queues:
            raise ClientError(f"queues with messages that were not handed over: {len(queues)}")


def _handed_over(client: OperatorClient, bridge: str) -> DrainState:
    """Wait until everything has gone that can. Raises: ClientError when it was ended."""
    said = ""
    with Bars() as bars:
        while True:
            found = ask(client, ShowDrain(), DrainState)
            now = found.hand_over
            if now is None or now.bridge != bridge:
                raise ClientError(
                    "the hand-over was cancelled; what was not sent is still in its queues"
                )
            bars("handing over", now.moved, now.moved + now.messages)
            if now.phase is HandOverPhase.DONE:
                return found
            if now.phase is HandOverPhase.FAILED:
                raise ClientError(
                    f"the hand-over failed: {now.moved} messages have arrived there, "
                    f"{now.messages} are still here: {now.problem}; {now.remedy}"
                )
            problem = f"{now.problem}: {now.remedy}" if now.problem and not now.server else ""
            if problem not in ("", said):
                typer.echo(printable(f"the hand-over cannot continue yet: {problem}"), err=True)
                said = problem
            time.sleep(_LOOK_EVERY_S)


def undrain(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Accept clients again after a drain."""
    with connected(config) as client:
        found = ask(client, Undrain(), DrainState)
    _print_drain(found, as_json=as_json)


def _print_drain(found: DrainState, *, as_json: bool) -> None:
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
    elif found.is_draining:
        typer.echo("drained: no clients are connected, and new ones are refused")
        if found.hand_over is not None:
            _print_hand_over(found.hand_over)
    else:
        typer.echo(f"new clients are accepted again; {found.connections} are connected")


def _print_hand_over(found: HandOver) -> None:
    size = format_size(found.moved_bytes)
    server = f" ({found.server})" if found.server else ""
    typer.echo(
        printable(f"handed over {found.moved} messages ({size}) by bridge {found.bridge}{server}")
    )
    for left in found.left:
        what = f"{left.kind.value} {left.name}".strip()
        typer.echo(printable(f"left here: {what}: {left.count}: {left.why}"))
    if found.left_more:
        typer.echo(f"left here: {found.left_more} more")


def reload(
    config: ConfigOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show what would change, without changing it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply a changed configuration to the running gateway.

    The gateway reads its file again and applies what can change without a restart. An error in the file
    changes nothing; the exit code is 2.
    """
    with connected(config) as client:
        found = ask(client, ReloadConfiguration(check_only=check), Reloaded)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
        return
    for change in found.changed:
        typer.echo(printable(f"{change.key}: {change.what}"))
    for change in found.left:
        typer.echo(printable(f"not changed: {change.key}: {change.what}"))
    for change in found.warnings:
        typer.echo(printable(f"warning: {change.key}: {change.what}"), err=True)
    if not (found.changed or found.left):
        typer.echo("nothing has changed")
