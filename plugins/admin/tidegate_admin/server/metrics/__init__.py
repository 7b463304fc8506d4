"""``/metrics`` for Prometheus, built from the contract's answers."""

from tidegate_admin.server.metrics._exposition import exposition, table
from tidegate_admin.server.metrics._scrape import Shown, metrics
from tidegate_admin.server.metrics._seen import Metric, Part, Seen
from tidegate_admin.server.metrics._table import METRICS

__all__ = ["METRICS", "Metric", "Part", "Seen", "Shown", "exposition", "metrics", "table"]
