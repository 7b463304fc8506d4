"""docs/metrics.md has every metric, as it is."""

import re
from pathlib import Path

from tidegate_admin.server.metrics import METRICS, table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
TEXT = DOCUMENT.read_text()


def test_every_metric_is_in_the_table() -> None:
    found = re.search(r"<!-- metrics -->\n(.*?)<!-- end -->", TEXT, re.DOTALL)
    assert found is not None
    assert found[1] == table(), "put what `python -m tidegate_admin.server.metrics` prints there"


def test_names_are_what_prometheus_wants() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"tidegate_[a-z0-9_]*[a-z0-9]", metric.name)
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert metric.help.endswith((".", ")."))
        assert "|" not in metric.help


def test_every_metric_that_the_text_names_is_there() -> None:
    known = {metric.exposed_name for metric in METRICS}
    named = set(re.findall(r"\b(tidegate_[a-z0-9_]*[a-z0-9])\b(?!…|_)", TEXT)) - known
    assert named <= {"tidegate_destination", "tidegate_destinations"}, named
