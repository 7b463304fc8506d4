"""docs/limits.md names every limit that the code has, with its default, its act and its metric."""

import dataclasses
import re
from pathlib import Path

import pytest

from tidegate.broker.limits.accounts import Accounts
from tidegate.broker.limits.overflow import Overflows
from tidegate.broker.sessions.authentication import Authentication
from tidegate.cli._reference import (
    block_names,
    limit_tables,
    plugin_options,
    update_document,
)
from tidegate.config import BrokerConfig, DestinationPolicy, Quota
from tidegate.plugins import PluginHost
from tidegate.spi import option_info
from tidegate_protocols.mqtt import MqttOptions
from tidegate_protocols.stomp._options import StompOptions
from tidegate_traces._extension import Traces
from tidegate_traces._options import TracesOptions

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
TEXT = DOCUMENT.read_text()

#: Named like limits, but none on what clients take.
OTHERS = {
    *("page_count", "page_bytes", "stop_timeout", "login_delay_max"),
    *("network_timeout", "connections_max", "cleanup_limit"),  # of the SQL stores
    *("filepool_limit", "journal_buffer_timeout"),  # of the journal
    "gap_timeout",  # of the sink
    "reconnect_max",  # of the bridge
    "batch_max",  # of traces
}
#: What DiskWatch.snapshot() tells.
DISK = {"disk.free.bytes", "disk.short", "store.used.bytes", "store.full"}
CLIENTS = (BrokerConfig, DestinationPolicy, Quota, StompOptions, MqttOptions)
TABLES = (*CLIENTS, *plugin_options(PluginHost()).values())


def test_every_limit_is_documented_as_it_is() -> None:
    tables = limit_tables(PluginHost())
    assert set(tables) == set(block_names(TEXT))
    assert update_document(TEXT, tables) == TEXT, (
        "run: tidegate option-tables --update docs/limits.md"
    )


@pytest.mark.parametrize("table", TABLES)
def test_every_limit_says_what_happens_at_it(table: type) -> None:
    named = re.compile(r".*(_max|_limit|_timeout|_count)$")
    silent = [
        field.name
        for field in dataclasses.fields(table)
        if named.match(field.name) and not option_info(field).act
    ]
    assert set(silent) <= OTHERS
    if table in CLIENTS:
        assert "connections_max" not in silent


def test_every_metric_is_there_and_explained() -> None:
    config = BrokerConfig()
    logins = Authentication((), config, lambda request, error: None)
    metrics = {*Accounts(config).snapshot(), *logins.counts(), *Overflows().snapshot()}
    metrics |= DISK | set(Traces(TracesOptions()).observer_counts())
    for metric in metrics:
        assert f"`{metric}`" in TEXT, metric
    told = set(
        re.findall(
            r"`((?:held|counted|in_flight|spooled|logins|overflow|disk|store|traces)\.[\w.]+)`",
            TEXT,
        )
    )
    assert told <= metrics
    for table in TABLES:
        for field in dataclasses.fields(table):
            metric = option_info(field).metric
            assert not metric or metric in metrics or metric.startswith("publish."), field.name
