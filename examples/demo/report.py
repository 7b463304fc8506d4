"""What Spark finds in the table, beside what the file says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import flights
import plots
from rich.console import Console
from rich.table import Table

#: Read by a process of its own: a JVM that is started once keeps two gigabytes for good.
_READER: Final = Path(__file__).with_name("read_table.py")


@dataclass(frozen=True)
class Found:
    """What the table holds.

    Attributes:
        rows: acknowledgements in the table.
        distinct_flights, distinct_weather: distinct messages by protocol.
        ack_dense: acknowledgement sequences run from 1 to *rows* without gap or repetition.
        carriers: figures of the distinct flights.
        pictures: files of the two plots.
    """

    rows: int
    distinct_flights: int
    distinct_weather: int
    ack_dense: bool
    carriers: dict[str, flights.CarrierFigures]
    pictures: list[Path]


def read_table(table: Path, table_format: str, work: Path) -> Found:
    """Let Spark compute the figures from the table, and draw two of them."""
    output = work / "found.json"
    with (work / "spark.log").open("wb") as log:
        subprocess.run(
            [sys.executable, str(_READER), str(table), table_format, str(output)],
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    found = json.loads(output.read_text())
    carriers = {name: flights.CarrierFigures(*entry) for name, entry in found["carriers"].items()}
    return Found(
        found["rows"],
        found["distinct_flights"],
        found["distinct_weather"],
        found["ack_dense"],
        carriers,
        plots.draw(work, found["delay_by_hour"], found["delay_by_visibility"]),
    )


def compare(console: Console, expected: dict[str, flights.CarrierFigures], found: Found) -> bool:
    """Print both side by side. Returns whether everything agrees."""
    table = Table(title="Departures and mean departure delay (minutes) by carrier")
    for heading in ("carrier", "departures: table", "file", "mean delay: table", "file", ""):
        table.add_column(heading, justify="left" if heading in ("carrier", "") else "right")
    agrees = expected.keys() == found.carriers.keys()
    for carrier, wanted in expected.items():
        got = found.carriers.get(carrier, flights.CarrierFigures())
        same = got == wanted
        agrees = agrees and same
        table.add_row(
            carrier,
            f"{got.departures:,}",
            f"{wanted.departures:,}",
            f"{got.mean_delay:.4f}",
            f"{wanted.mean_delay:.4f}",
            "same" if same else "DIFFERENT",
        )
    console.print(table)
    wanted_count = flights.FLIGHTS_COUNT + flights.WEATHER_COUNT
    got_count = found.distinct_flights + found.distinct_weather
    console.print(
        f"distinct acknowledged messages in the table: {got_count:,}"
        f" ({found.distinct_flights:,} STOMP + {found.distinct_weather:,} MQTT);"
        f" published: {wanted_count:,}; rows: {found.rows:,};"
        f" acknowledgement sequence without gap: {'yes' if found.ack_dense else 'NO'}"
    )
    agrees = agrees and got_count == wanted_count and found.ack_dense
    console.print("everything agrees" if agrees else "[bold]THE FIGURES DO NOT AGREE[/bold]")
    return agrees
