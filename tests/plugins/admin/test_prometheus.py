"""A real Prometheus scrapes a gateway: the queries of the dashboard and the rules have answers."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from free_ports import free_port
from gateway_process import GatewayProcess
from monitoring import MONITORING, alerts, dashboard_queries, metric_names, with_variables
from wire import StompClient

pytestmark = pytest.mark.long

PATIENCE_S = 120.0

EXTRA = """
[[listeners]]
protocol = "admin"
bind = "127.0.0.1:{port}"

[[sinks]]
plugin = "flight"
bind = "127.0.0.1:0"
readers = {{ etl = "anonymous" }}
"""


class Prometheus:
    """Scrapes every second. Args: target: port of the admin listener; token: file."""

    def __init__(self, directory: Path, target: int, token: Path) -> None:
        self._port = free_port()
        self._directory = directory
        text = (MONITORING / "prometheus.yml").read_text()
        for old, new in (
            ("/etc/prometheus/tidegate.token", str(token)),
            ("127.0.0.1:8161", f"127.0.0.1:{target}"),
            ("15s", "1s"),
        ):
            assert old in text
            text = text.replace(old, new)
        (directory / "prometheus.yml").write_text(text)
        shutil.copy(MONITORING / "alerts.yml", directory)

    def __enter__(self) -> Prometheus:
        program = shutil.which("prometheus")
        assert program, "prometheus is not here: install the package, as .ci/run does"
        self._log = (self._directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                "--config.file=prometheus.yml",
                f"--storage.tsdb.path={self._directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            cwd=self._directory,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def ask(self, path: str) -> Any:
        """Data of an answer. Raises: AssertionError when there is none in time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}") as found:
                    answer = json.load(found)
                    assert answer["status"] == "success"
                    return answer["data"]
            except OSError as error:  # not there, or not ready yet
                problem = f"{path}: {error}"
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
            assert self._process.poll() is None, (self._directory / "prometheus.log").read_text()
            assert time.monotonic() < deadline, problem
            time.sleep(0.1)

    def query(self, query: str) -> list[Any]:
        """Series."""
        return self.ask(f"/api/v1/query?query={quote(query)}")["result"]

    def until(self, query: str) -> list[Any]:
        """Series, when there are any."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.query(query)):
            assert time.monotonic() < deadline, f"{query}: {self.ask('/api/v1/targets')}"
            time.sleep(0.1)
        return found


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[GatewayProcess, Prometheus]]:
    port = free_port()
    gateway = GatewayProcess(tmp_path, extra=EXTRA.format(port=port))
    (tmp_path / "prometheus").mkdir()
    with gateway:
        token = gateway.directory / "data" / "admin.token"
        with Prometheus(tmp_path / "prometheus", port, token) as prometheus:
            yield gateway, prometheus


async def through(gateway: GatewayProcess) -> None:
    """A message that was consumed, one that waits, and one that nobody gets."""
    client = await StompClient.connect(gateway.stomp_port)
    for destination in ("/queue/consumed", "/queue/waits", "/topic/nobody"):
        client.send("SEND", b"x", destination=destination, receipt=destination)
        await client.receipt(destination)
    client.send("SUBSCRIBE", id="s", destination="/queue/consumed", ack="auto")
    assert (await client.receive()).command == "MESSAGE"
    await client.aclose()


def test_every_query_of_the_dashboard_has_an_answer_and_every_name_is_scraped(
    scraped: tuple[GatewayProcess, Prometheus],
) -> None:
    gateway, prometheus = scraped
    asyncio.run(through(gateway))
    everything_is_there(prometheus)


def everything_is_there(prometheus: Prometheus) -> None:
    # Several scrapes, so that there are rates; and the confirmation is of the last half minute.
    prometheus.until("tidegate_confirmation_p99_seconds")
    prometheus.until("count_over_time(tidegate_sink_mark[10m]) > 2")
    names = set(prometheus.ask("/api/v1/label/__name__/values"))
    queries = dashboard_queries()
    named = set().union(*map(metric_names, [*queries, *alerts().values()]))
    # This gateway has no certificate, so these have no series.
    without = {f"tidegate_certificate_{what}_time_seconds" for what in ("begin", "end")}
    assert named - names == without
    silent = [item for item in queries if not prometheus.query(with_variables(item, "10m"))]
    assert set(silent) <= SILENT
    found = prometheus.query('tidegate_destination_pending_messages{kind="queue"}')
    pending = {item["metric"]["destination"]: item["value"][1] for item in found}
    assert pending == {"queue://waits": "1", "queue://consumed": "0"}
    rules = prometheus.ask("/api/v1/rules")["groups"][0]["rules"]
    assert {rule["name"] for rule in rules} == set(alerts())
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


#: What a gateway says nothing of that has just started and has no store_limit.
SILENT = {
    query
    for query in dashboard_queries()
    if query.startswith("tidegate_store_limit_bytes") or "changes(tidegate_start_time" in query
}


def test_a_gateway_that_is_gone_is_an_alert(
    scraped: tuple[GatewayProcess, Prometheus],
) -> None:
    gateway, prometheus = scraped
    prometheus.until("tidegate_ready == 1")
    gateway.kill()
    prometheus.until('ALERTS{alertname="TidegateDown"}')
    assert not prometheus.query('ALERTS{alertname="TidegateStoreFailed"}')
