"""``tidegate bridges``: what moves between a gateway that runs and other brokers."""

from __future__ import annotations

import datetime
from typing import Final

from tidegate.cli._commands import ConfigOption, JsonOption
from tidegate.cli.groups._lists import Columns, LimitOption, MatchArgument, rows_of, show_rows
from tidegate.spi import format_size
from tidegate.spi.operate import BridgePage, BridgeRow, ListBridges


def _hangs_on(row: BridgeRow) -> str:
    return f"message {row.refused}, refused {row.refused_attempts} times" if row.refused else ""


def _last_problem(row: BridgeRow) -> str:
    """With when it was; of one that is connected nothing needs to be done."""
    if not row.problem:
        return ""
    when = f" ({_time(row.problem_at)})" if row.problem_at else ""
    if row.is_connected:
        return f"over{when}: {row.problem}"
    return f"{row.problem}: {row.remedy}{when}"


_BRIDGES: Final[Columns[BridgeRow]] = (
    ("bridge", lambda row: row.bridge),
    ("rule", lambda row: row.rule),
    ("from", lambda row: row.source),
    ("to", lambda row: row.target),
    ("connected to", lambda row: row.server or (f"paused: {row.paused}" if row.paused else "-")),
    ("moved", lambda row: row.moved),
    ("on the way", lambda row: f"{row.on_the_way} ({format_size(row.on_the_way_bytes)})"),
    ("stuck on", _hangs_on),
    ("parked", lambda row: row.parked),
    ("last", lambda row: _time(row.last_at)),
    ("last problem", _last_problem),
)


def list_bridges(
    match: MatchArgument = "",
    limit: LimitOption = 0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules of bridges to other brokers, and the progress of each."""
    rows = rows_of(config, ListBridges(match), BridgePage, limit)
    show_rows(_BRIDGES, rows, "no bridges", as_json)


def _time(at_us: int) -> str:
    if not at_us:
        return "never"
    found = datetime.datetime.fromtimestamp(at_us / 1_000_000, datetime.UTC)
    return found.isoformat(" ", "seconds").replace("+00:00", "Z")
