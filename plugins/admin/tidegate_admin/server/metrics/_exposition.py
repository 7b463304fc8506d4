"""Metrics as text: the exposition for Prometheus, and the table of the documents."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tidegate_admin.server.metrics._seen import Metric, Seen
from tidegate_admin.server.metrics._table import METRICS


def exposition(seen: Seen, accept: str) -> tuple[bytes, str]:
    """The text and its content type for *accept*: OpenMetrics, or Prometheus's own format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(seen))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class _Collected(Collector):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Family]:
        """All families that have a series."""
        families = [_family(metric, self._seen) for metric in METRICS]
        return [family for family in families if family.samples]


def _family(metric: Metric, seen: Seen) -> Family:
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.samples(seen):
        family.add_metric(labels, value)
    return family


def table() -> str:
    """The Markdown table of docs/metrics.md."""
    lines = ["| Metric | Kind | Labels | What it says |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        kind = "counter" if metric.is_counter else "gauge"
        labels = ", ".join(f"`{name}`" for name in metric.labels)
        lines.append(f"| `{metric.exposed_name}` | {kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"
