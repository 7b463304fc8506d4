"""Two pictures of what Spark found in the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

#: Origin, hour of the scheduled departure, mean delay in minutes.
HourlyDelay = tuple[str, int, float]
#: Visibility in miles (whole, 10 at most), departures, mean delay in minutes.
VisibilityDelay = tuple[int, int, float]


def draw(
    directory: Path, by_hour: Sequence[HourlyDelay], by_visibility: Sequence[VisibilityDelay]
) -> list[Path]:
    """Draw both into *directory* and return the files.

    Args:
        by_hour: the departures that came over STOMP.
        by_visibility: the same, joined with the observations that came over MQTT.
    """
    hours, axes = _picture("Departure delay by hour", "scheduled hour")
    for origin in sorted({row[0] for row in by_hour}):
        points = [(hour, delay) for name, hour, delay in by_hour if name == origin]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=origin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    visibility, axes = _picture(
        "Departure delay by visibility (and departures)", "visibility (miles)"
    )
    miles = [str(row[0]) for row in by_visibility]
    bars = axes.bar(miles, [row[2] for row in by_visibility], color="tab:blue")
    axes.bar_label(bars, [f"{row[1]:,}" for row in by_visibility], fontsize=7, color="dimgray")
    made: list[Path] = []
    for name, picture in (("delay-by-hour", hours), ("delay-by-visibility", visibility)):
        made.append(directory / f"{name}.png")
        picture.savefig(made[-1], dpi=110)
    return made


def _picture(title: str, across: str) -> tuple[Figure, Axes]:
    picture = Figure(figsize=(6, 3.4), layout="constrained")
    axes = picture.subplots()
    axes.set_title(title, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel("mean delay (minutes)")
    axes.spines[["top", "right"]].set_visible(False)
    return picture, axes
