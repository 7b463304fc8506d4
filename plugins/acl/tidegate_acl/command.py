"""``tidegate acl``: which rule decides, and why.

Entry point ``acl`` of the group ``tidegate.commands``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tidegate.spi import Action, CommandHost, ConfigError, Identity, Verdict, names

if TYPE_CHECKING:
    from tidegate_acl._rules import Decision, Rules

#: Exit code of `test` for a refusal.
EXIT_DENIED: Final = 1

app: Final = typer.Typer(rich_markup_mode=None, help="Ask the rules who may do what.")


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  # so that `test` stays a command
    """Ask the rules who may do what."""


@app.command(name="test")
def explain(
    context: typer.Context,
    principal: Annotated[str, typer.Argument(help="User name; `anonymous` for no user.")],
    action: Annotated[Action, typer.Argument(help="The action to check.")],
    name: Annotated[
        str, typer.Argument(help="queue://NAME or topic://NAME, wildcards allowed.")
    ] = "",
    client_id: Annotated[str, typer.Option("--client-id", help="Client id of the user.")] = "",
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A group of the user; repeatable.")
    ] = None,
    address: Annotated[str, typer.Option("--address", help="IP address of the client.")] = "",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration file."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules", metavar="FILE", help="A file of rules, instead of the configuration's."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which rule decides about a request, and what it decides.

    Exit code 0: allowed, perhaps in part; 1: refused.
    """
    from tidegate_acl._reading import read_rules
    from tidegate_acl._rules import NOWHERE

    host: CommandHost = context.obj
    _check_name(action, name, action in NOWHERE)
    found = [read_rules(path) for path in ([rules] if rules else _configured(host, config))]
    identity = Identity(principal, frozenset(group or ()), client_id, address, "")
    decisions = [one.decide(identity, action, name) for one in found]
    for one in found:
        for warning in one.warnings:
            typer.echo(f"warning: {warning}", err=True)
    denied = any(decision.verdict is Verdict.DENY for decision in decisions)
    if as_json:
        host.print_json([_json(decision) for decision in decisions])
    else:
        for one, decision in zip(found, decisions, strict=True):
            for line in _explained(one, identity, action, name, decision):
                typer.echo(line)
    if denied:
        raise typer.Exit(EXIT_DENIED)


def _check_name(action: Action, name: str, is_nowhere: bool) -> None:
    if is_nowhere:
        if name:
            raise ConfigError(f"{action.value} does not apply to destinations; leave the name out")
        return
    if not (names.is_queue(name) or names.is_topic(name)):
        raise ConfigError(f"{name!r} is neither queue://NAME nor topic://NAME")
    try:
        if action in (Action.SUBSCRIBE, Action.CONSUME, Action.BROWSE):
            names.check_filter(names.name_of(name))
        else:
            names.check_name(names.name_of(name))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _configured(host: CommandHost, config: Path | None) -> list[Path]:
    from tidegate_acl._extension import AclOptions

    found = [cast("AclOptions", item).rules for item in host.extension_options(config, "acl")]
    if not found:
        raise ConfigError(
            'the configuration has no [[extensions]] with plugin = "acl"; name a file with --rules',
            path=str(config or ""),
        )
    return found


def _explained(
    rules: Rules, identity: Identity, action: Action, name: str, decision: Decision
) -> list[str]:
    words = {
        Verdict.ALLOW: "allowed",
        Verdict.DENY: "refused",
        Verdict.FILTER: "allowed in part: each message is checked when it is delivered",
    }
    from tidegate_acl._reasons import reasons

    what = f"{identity.principal}: {action.value}" + (f" {name}" if name else "")
    lines = [f"{what}: {words[decision.verdict]}"]
    return lines + [f"  {reason}" for reason in reasons(rules, decision)]


def _json(decision: Decision) -> dict[str, Any]:
    return {
        "verdict": decision.verdict.value,
        "rules": [
            None if rule is None else {"number": rule.number, "line": rule.line}
            for rule in decision.rules
        ],
    }
