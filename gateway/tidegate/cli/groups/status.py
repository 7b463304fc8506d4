"""``tidegate status``: how the gateway that runs is."""

from __future__ import annotations

import msgspec

from tidegate.cli import _show
from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._asking import ask, connected, moment
from tidegate.cli.groups._lists import show_facts
from tidegate.cli.groups._words import counted, duration, size, sized
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import CertificateEnd, GatewayState, Overview, ShowOverview, Traffic
from tidegate.spi.printable import printable


def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the state of the running gateway, and its traffic.

    Exit code 8: no gateway is running there, or its store has failed and confirms nothing.
    """
    with connected(config) as client:
        found = ask(client, ShowOverview(), Overview)
    if as_json:
        _show.print_json(msgspec.to_builtins(found))
    else:
        show_facts(_facts(found))
    if found.state is GatewayState.STORE_FAILED:
        raise ClientError(f"the message store has failed: {printable(found.problem)}")


def _facts(found: Overview) -> list[tuple[str, object]]:
    waited = found.confirmation
    facts: list[tuple[str, object]] = [
        ("gateway", f"{found.name}, tidegate {found.version}"),
        ("state", ": ".join(filter(None, (found.state.value, found.problem)))),
        ("since", f"{moment(found.started_at)} ({duration(found.uptime_s)})"),
        *[("listens on", address) for address in found.listeners],
        *[("certificate until", _until(one)) for one in found.certificates],
        ("connections", counted(found.connections)),
        ("sessions, subscriptions", f"{found.sessions}, {found.subscriptions}"),
        ("queues", found.queues),
        ("backlog", f"{found.backlog} messages"),
        ("published", _through(found.published)),
        ("confirmed", _through(found.confirmed)),
        ("delivered", _through(found.delivered)),
        ("acknowledged", _through(found.acknowledged)),
        ("dropped", _through(found.dropped)),
        (
            "confirmed within",
            f"{waited.p50_ms:g} ms (p50), {waited.p99_ms:g} ms (p99)" if waited.count else "none",
        ),
        ("store", sized(found.store)),
        ("free on its disk", "unknown" if found.disk_free is None else size(found.disk_free)),
        ("held for clients", sized(found.held)),
        ("in flight", sized(found.in_flight)),
        ("cursors, stored", sized(found.stored_memory)),
        ("cursors, not stored", sized(found.unstored_memory)),
        ("temporary files", sized(found.temporary)),
    ]
    return facts


def _until(certificate: CertificateEnd) -> str:
    return f"{moment(certificate.ends_at)} ({certificate.path})"


def _through(traffic: Traffic) -> str:
    return f"{traffic.total} ({traffic.per_second:g}/s)"
