"""examples/monitoring and docs/alerts.md: what Prometheus thinks of them, and whether they speak of metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from monitoring import MONITORING, alerts, dashboard_queries, metric_names, with_variables

from tidegate_admin.server.metrics import METRICS

RUNBOOK = (Path(__file__).resolve().parents[2] / "docs" / "alerts.md").read_text()
KNOWN = {metric.exposed_name for metric in METRICS}


def promtool(*arguments: str | Path) -> str:
    program = shutil.which("promtool")
    assert program, "promtool is not here: install the package prometheus, as .ci/run does"
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files as they are used, with the files that they name."""
    for path in MONITORING.glob("*.yml"):
        text = path.read_text().replace("/etc/prometheus", str(tmp_path))
        (tmp_path / path.name).write_text(text)
    for name in ("tidegate.token", "tidegate.password", "tidegate-ca.pem"):
        (tmp_path / name).touch()
    return tmp_path


def test_prometheus_takes_the_configuration_and_the_rules(directory: Path) -> None:
    assert "SUCCESS" in promtool("check", "config", directory / "prometheus.yml")
    readme = (MONITORING / "README.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
    (directory / "elsewhere.yml").write_text(example.replace("/etc/prometheus", str(directory)))
    promtool("check", "config", directory / "elsewhere.yml")


def test_each_rule_fires_when_it_should_and_none_when_all_is_well(directory: Path) -> None:
    promtool("test", "rules", directory / "alerts_test.yml")
    tried = re.findall(r'alertname="(\w+)"', (directory / "alerts_test.yml").read_text())
    assert sorted(tried) == sorted(alerts())


def test_a_rule_that_never_fires_is_noticed(directory: Path) -> None:
    rules = directory / "alerts.yml"
    rules.write_text(rules.read_text().replace("tidegate_ready == 0", "tidegate_ready == 7"))
    with pytest.raises(AssertionError, match="TidegateNotReady"):
        promtool("test", "rules", directory / "alerts_test.yml")


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    queries = [*alerts().values(), *dashboard_queries()]
    named = set().union(*map(metric_names, queries))
    assert len(named) > 40
    assert named <= KNOWN
    series = re.findall(r"series: '(\w+)\{", (MONITORING / "alerts_test.yml").read_text())
    assert set(series) - {"up"} <= KNOWN


def test_prometheus_understands_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"query{number}", "expr": with_variables(query)}
        for number, query in enumerate(dashboard_queries())
    ]
    path = tmp_path / "queries.yml"
    # JSON is YAML, too.
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_each_alert_says_what_to_do_and_nothing_else_is_there() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)
    assert headings == list(alerts())
    text = (MONITORING / "alerts.yml").read_text()
    for name in alerts():
        assert f"runbook: docs/alerts.md#{name.lower()}\n" in text
    for entry in RUNBOOK.split("\n## ")[1:]:
        assert len(entry.split("\n\n", 1)[1].strip()) > 60


def test_the_dashboard_hangs_together() -> None:
    found: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    boxes = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on each other"
    assert max(x for x, _ in cells) == 23
    for panel in panels:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert '{instance=~"$instance"' in target["expr"]
