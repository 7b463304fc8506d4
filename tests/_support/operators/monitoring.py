"""What examples/monitoring asks Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

MONITORING = Path(__file__).resolve().parents[3] / "examples" / "monitoring"


def alerts() -> dict[str, str]:
    """The query of each alert, by name, in the order of the file."""
    text = (MONITORING / "alerts.yml").read_text()
    return dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text))


def dashboard_queries() -> list[str]:
    """All of them, as they are written."""
    return list(_queries(json.loads((MONITORING / "dashboard.json").read_text())))


def _queries(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            if key == "expr":
                yield str(inner)
            else:
                yield from _queries(inner)
    elif isinstance(value, list):
        for inner in cast("list[object]", value):
            yield from _queries(inner)


def with_variables(query: str, interval: str = "1m") -> str:
    """As Grafana sends it when all gateways are shown."""
    return query.replace("$instance", ".*").replace("$__rate_interval", interval)


def metric_names(query: str) -> set[str]:
    """Of Tidegate's, that a query names outside of strings."""
    return set(re.findall(r"\btidegate_\w+", re.sub(r'"[^"]*"', '""', query)))
