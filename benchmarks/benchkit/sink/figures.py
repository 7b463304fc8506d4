"""One figure of the sink's benchmark, and its goal."""

import os
from dataclasses import dataclass, field
from typing import Final

from benchkit.brokers import TIDEGATE

#: What issue 15 asks for.
STAGING_ROWS_MIN: Final = 200_000.0
TABLE_ROWS_MIN: Final = 120_000.0
LAG_SECONDS_MAX: Final = {"spark": 3.0, "iceberg": 3.0, "deltalake": 1.0}
START_SECONDS_MAX: Final = 15.0
SHARE_MIN: Final = 0.8
SHARE_OWN_CORE_MIN: Final = 0.95
STALL_MS_MAX: Final = 5.0
LOG_SHARE_MAX: Final = 0.1
FILES_MAX: Final = 500.0
REPLAYED_MIN: Final = 40_000.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        part: the measurement that it is of.
        name: what was measured, such as an engine and a rate.
        least, most: the goal; None where there is none.
        detail: what stands beside it, for people.
        load: the machine's load average when it was taken.
    """

    part: str
    name: str
    value: float = 0.0
    unit: str = ""
    least: float | None = None
    most: float | None = None
    detail: str = ""
    error: str = ""
    load: float = field(default_factory=lambda: round(os.getloadavg()[0], 1))

    @property
    def broker(self) -> str:
        """No other broker has a sink."""
        return TIDEGATE

    @property
    def reached(self) -> bool:
        """Its goal is met; True when it has none."""
        if self.error:
            return False
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)

    @property
    def goal(self) -> str:
        """In words; "" when there is none."""
        if self.least is not None:
            return f"at least {self.least:,g}"
        return f"at most {self.most:,g}" if self.most is not None else ""

    def line(self) -> str:
        """One line for people."""
        head = f"{self.part:<10} {self.name:<28}"
        if self.error:
            return f"{head} failed: {self.error}"
        text = f"{self.value:,.0f}" if self.value >= 1000 else f"{self.value:.3g}"
        verdict = f"; goal {'reached' if self.reached else 'missed'}: {self.goal}"
        return (
            f"{head} {text} {self.unit}{verdict if self.goal else ''}"
            f"{f'; {self.detail}' if self.detail else ''} (load {self.load:g})"
        )
