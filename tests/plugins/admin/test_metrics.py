"""/metrics: what it says of answers that are made up, however the gateway is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tidegate.spi.clients.operators import Phase, Readiness
from tidegate.spi.operate import (
    BridgePage,
    BridgeRow,
    CertificateEnd,
    Destination,
    DestinationKind,
    DestinationPage,
    DestinationSort,
    DestinationTotals,
    GatewayState,
    Latency,
    Overview,
    Room,
    SinkList,
    SinkStatus,
    Traffic,
)
from tidegate.spi.sink import SinkCommit, SinkHealth, SinkState
from tidegate_admin import _protocol as protocol
from tidegate_admin.server.metrics import METRICS, Seen, Shown, _scrape, exposition, metrics
from tidegate_admin.server.metrics._seen import BRIDGE_RULES_MAX, LABEL_MAX

SHOWN = Shown(2, DestinationSort.CONSUMERS, "orders.>")
RIGHT = protocol.Credentials(token="right")

OVERVIEW = Overview(
    name='g"w\n\\',
    version="1.2",
    store_id="s",
    started_at=1_500_000,
    uptime_s=3.0,
    state=GatewayState.STORE_FULL,
    problem="no room",
    listeners=(),
    published=Traffic(10, 1.0),
    confirmed=Traffic(9, 1.0),
    delivered=Traffic(8, 1.0),
    acknowledged=Traffic(7, 1.0),
    dropped=Traffic(6, 1.0),
    confirmation=Latency(5, 2.0, 40.0),
    connections=Room(3, 100),
    sessions=4,
    subscriptions=5,
    queues=6,
    backlog=7,
    store=Room(1000, 0),
    disk_free=None,
    held=Room(11, 12),
    in_flight=Room(13, 14),
    stored_memory=Room(15, 16),
    unstored_memory=Room(17, 18),
    temporary=Room(19, 20),
    memory_bytes=21,
    counts={
        "held.bytes": 99,
        "held.wills.bytes": 1,
        "held.queues.bytes": 2,
        "logins.refused": 3,
        "events.store-full.count": 4,
        "lists.unreadable": 5,
    },
    certificates=(CertificateEnd("listeners[0].tls_ca", "/ca.pem", "CN=a", 1_500_000, 2_500_000),),
)


def row(name: str, pending: int = 0, *, paused: bool = False, full: bool = False) -> Destination:
    kind = DestinationKind.QUEUE
    return Destination(name, kind, pending, 1, 2, 0, None, 3, full, (), 4, paused, False)


PAGE = DestinationPage(
    (row("queue://a", 50, full=True), row("queue://b", 7, paused=True)),
    "7 queue://b",
    DestinationTotals(10_000, 100, 20, 30, 40, 50, full=3, paused=2, unattended=1),
)
SINKS = SinkList(
    (
        SinkStatus(
            "lake",
            SinkHealth(
                SinkState.FAILING,
                12,
                13,
                "gone",
                last_commit=SinkCommit(2_500_000, 3),
                dead_rows=2,
                is_late=True,
            ),
            *("s", 1, 20, 8, 900, 4.5, 9, 1000, 0.25),
        ),
        SinkStatus(
            "new",
            SinkHealth(SinkState.STARTING, 0, 0, is_mark_known=False),
            "s",
            1,
            20,
            8,
            9,
            None,
            9,
            9,
            0.0,
        ),
    )
)


def rule(name: str, moved: int = 0) -> BridgeRow:
    facts = ("stomp/1", moved, 10 * moved, 3, 4, 0, 0, "", "")
    more: dict[str, Any] = {"refused": 9, "refused_attempts": 2, "parked": 5, "failures": 6}
    return BridgeRow("old", name, "in", "stomp://x", "/queue/a", "queue://a", *facts, **more)


BRIDGES = BridgePage((rule("orders", 7),))


#: What this gateway has no number for.
NOT_COUNTED = {
    *(item.exposed_name for item in METRICS if item.name.startswith("tidegate_limit_")),
    *(item.exposed_name for item in METRICS if item.name.startswith("tidegate_overload")),
    *(item.exposed_name for item in METRICS if item.name.startswith("tidegate_acknowledged_")),
    *("tidegate_messages_duplicate_total", "tidegate_held_refusals_total"),
    *("tidegate_slow_consumers", "tidegate_logins_dropped_total", "tidegate_logins_waiting"),
    *("tidegate_spans_sent_total", "tidegate_spans_lost_total", "tidegate_spans_dropped_total"),
    "tidegate_trace_rows_forgotten_total",
}


class Gateway:
    """Stands for the link.

    Attributes: errors: kinds of errors by request; hangs: requests that are never answered.
    """

    def __init__(self) -> None:
        self.now: Readiness | None = Readiness(Phase.RUNNING)
        self.last_readiness: Readiness | None = None
        self.silent_s = 0.0
        self.errors: dict[str, str] = {}
        self.hangs: set[str] = set()
        self.asked: list[Any] = []
        self.bridges = [BRIDGES]

    async def ask(
        self, peer: str, credentials: protocol.Credentials, request: bytes = b"null"
    ) -> protocol.Answer:
        asked = msgspec.json.decode(request) or {"type": "nothing"}
        self.asked.append(asked)
        kind = asked["type"]
        if credentials != RIGHT:
            return protocol.Answer(1, kind=protocol.LOGIN, problem="who are you?")
        if kind in self.hangs:
            await asyncio.Event().wait()
        if kind in self.errors:
            return protocol.Answer(1, kind=self.errors[kind], problem="so it is")
        answers = {
            "show-overview": OVERVIEW,
            "list-destinations": PAGE,
            "list-sinks": SINKS,
            "list-bridges": self.bridges[0],
            "nothing": None,
        }
        if kind == "list-bridges" and self.bridges[1:]:
            del self.bridges[0]
        return protocol.Answer(1, msgspec.Raw(msgspec.json.encode(answers[kind])))

    async def readiness(self, timeout_s: float) -> Readiness | None:
        return self.now


async def scraped(gateway: Gateway, *, accept: str = "", who: Any = RIGHT) -> tuple[int, str]:
    found = await metrics(gateway, "192.0.2.7:5", who, accept, SHOWN)  # type: ignore[arg-type]
    return found.status_code, bytes(found.body).decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    """By name and values of labels, in the order of their names."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def values_of(gateway: Gateway) -> dict[tuple[str, ...], float]:
    status, text = await scraped(gateway)
    assert status == 200
    return values(text)


async def test_every_metric_has_its_series() -> None:
    gateway = Gateway()
    found = await values_of(gateway)
    assert found["tidegate_events_total", "store-full"] == 4
    absent = {metric.exposed_name for metric in METRICS} - {name for name, *_ in found}
    assert absent == NOT_COUNTED | {"tidegate_disk_free_bytes"}
    assert found["tidegate_info", 'g"w\n\\', "s", "1.2"] == 1
    assert found["tidegate_state", "store-full"] == 1
    assert found["tidegate_certificate_begin_time_seconds", "listeners[0].tls_ca", "/ca.pem"] == 1.5
    assert found["tidegate_certificate_end_time_seconds", "listeners[0].tls_ca", "/ca.pem"] == 2.5
    assert found[("tidegate_destinations_unreadable",)] == 5
    assert found["tidegate_state", "running"] == 0
    assert found[("tidegate_messages_published_total",)] == 10
    assert found[("tidegate_confirmation_p99_seconds",)] == 0.04
    assert found[("tidegate_start_time_seconds",)] == 1.5
    assert found["tidegate_memory_limit_bytes", "temporary-files"] == 20
    assert found["tidegate_held_bytes", "wills"] == 1
    assert ("tidegate_held_bytes", "held") not in found
    assert found["tidegate_sink_state", "lake", "failing"] == 1
    assert found["tidegate_sink_last_commit_seconds", "lake"] == 2.5
    assert found["tidegate_sink_log_ratio", "lake"] == 0.25
    assert ("tidegate_sink_lag_seconds", "new") not in found
    assert found["tidegate_sink_mark", "lake"] == 12
    assert ("tidegate_sink_mark", "new") not in found  # 0 would be told as a fact
    assert found["tidegate_sink_lag_messages", "new"] == 8
    assert gateway.asked[2] == {
        "type": "list-destinations",
        "match": "orders.>",
        "sort": "consumers",
        "after": "",
        "limit": 2,
        "with_totals": True,
        "contains": "",
        "dead_letters": False,
    }


async def test_destinations_that_have_no_series_are_one_together() -> None:
    found = await values_of(Gateway())
    name = "tidegate_destination_pending_messages"
    assert {key[1:]: value for key, value in found.items() if key[0] == name} == {
        ("queue://a", "queue"): 50,
        ("queue://b", "queue"): 7,
        ("other", "other"): 43,
    }
    assert found["tidegate_destination_in_flight_messages", "other", "other"] == 18
    assert found["tidegate_destination_full", "queue://a", "queue"] == 1
    assert found["tidegate_destination_paused", "queue://b", "queue"] == 1
    assert ("tidegate_destination_full", "other", "other") not in found
    assert found[("tidegate_destinations",)] == 10_000
    assert found[("tidegate_destinations_unattended",)] == 1


async def test_rules_of_bridges_have_series_and_those_behind_the_first_are_one_together() -> None:
    gateway = Gateway()
    found = await values_of(gateway)
    assert found["tidegate_bridge_connected", "old", "orders"] == 1
    assert found["tidegate_bridge_moved_messages_total", "old", "orders"] == 7
    assert found["tidegate_bridge_failures_total", "old", "orders"] == 6
    many = [rule(f"r{number:03}", 1) for number in range(BRIDGE_RULES_MAX + 30)]
    gateway.bridges = [BridgePage(tuple(many[:110]), "0 old r109"), BridgePage(tuple(many[110:]))]
    found = await values_of(gateway)
    name = "tidegate_bridge_moved_messages_total"
    assert found[name, "other", "other"] == 30
    assert len([key for key in found if key[0] == name]) == BRIDGE_RULES_MAX + 1
    assert ("tidegate_bridge_connected", "other", "other") not in found
    assert [ask["after"] for ask in gateway.asked if ask["type"] == "list-bridges"][
        -1
    ] == "0 old r109"


async def test_no_destination_has_a_series_when_that_is_wanted() -> None:
    shown = Shown(0, DestinationSort.PENDING, "")
    answer = await metrics(Gateway(), "", RIGHT, "", shown)  # type: ignore[arg-type]
    found = values(bytes(answer.body).decode())
    assert found["tidegate_destination_pending_messages", "other", "other"] == 100
    assert not any("queue://a" in key for key in found)


def test_a_name_that_is_too_long_is_among_the_others() -> None:
    long = "queue://" + "x" * (LABEL_MAX - 7)
    page = DestinationPage((row(long, 60), row(long[:-1], 5)), "", PAGE.totals)
    text, _ = exposition(Seen(Readiness(Phase.RUNNING), page=page), "")
    found = values(text.decode())
    name = "tidegate_destination_pending_messages"
    assert found[name, "other", "other"] == 95
    assert found[name, long[:-1], "queue"] == 5
    assert (name, long, "queue") not in found


def test_what_came_between_the_totals_and_the_rows_makes_no_negative_rest() -> None:
    page = DestinationPage((row("queue://a", 60),), "", DestinationTotals(1, pending=50))
    text, _ = exposition(Seen(Readiness(Phase.RUNNING), page=page), "")
    assert values(text.decode())["tidegate_destination_pending_messages", "other", "other"] == 0


async def test_whoever_asks_for_openmetrics_gets_it() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    _, text = await scraped(Gateway(), accept=accept)
    assert text.endswith("# EOF\n")
    families = {item.name for item in openmetrics.text_string_to_metric_families(text)}
    assert {"tidegate_messages_published", "tidegate_sink_state"} <= families


@pytest.mark.parametrize(
    ("now", "phase", "ratio"),
    [
        (Readiness(Phase.RECOVERING, "replaying", 40.0), "recovering", 0.4),
        (Readiness(Phase.RECOVERING), "recovering", None),
        (Readiness(Phase.STARTING), "starting", 1.0),
        (Readiness(Phase.STOPPING), "stopping", 1.0),
    ],
)
async def test_a_gateway_that_does_not_run_says_how_far_it_is_and_is_asked_nothing(
    now: Readiness, phase: str, ratio: float | None
) -> None:
    gateway = Gateway()
    gateway.now = now
    found = await values_of(gateway)
    assert found[("tidegate_ready",)] == 0
    assert found["tidegate_phase", phase] == 1
    assert found.get(("tidegate_recovery_ratio",)) == ratio
    assert {asked["type"] for asked in gateway.asked} == {"nothing"}
    assert not any(key[0].startswith(("tidegate_messages", "tidegate_dest")) for key in found)


async def test_a_gateway_that_does_not_say_how_it_is_is_not_ready() -> None:
    gateway = Gateway()
    gateway.now, gateway.last_readiness = None, Readiness(Phase.RUNNING)
    found = await values_of(gateway)
    assert (found[("tidegate_ready",)], found[("tidegate_problems",)]) == (0, 1)


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_what_a_store_that_fails_or_hangs_does_not_say_is_left_out_and_named(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway()
    if how == "fails":
        gateway.errors["list-sinks"] = "StoreIOError"
    else:
        monkeypatch.setattr(_scrape, "_PART_S", 0.01)
        gateway.hangs.add("list-sinks")
    found = await values_of(gateway)
    assert found["tidegate_scrape_missing", "sinks"] == 1
    assert found[("tidegate_messages_published_total",)] == 10
    assert not any(key[0].startswith("tidegate_sink") for key in found)
    if how == "fails":
        assert found["tidegate_scrape_missing", "overview"] == 0


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda gateway: gateway.errors.update({"nothing": "StoreUnavailableError"}), 503),
        (lambda gateway: gateway.errors.update({"show-overview": "AccessError"}), 403),
    ],
)
async def test_who_may_not_is_told_nothing(spoil: Callable[[Gateway], None], status: int) -> None:
    gateway = Gateway()
    spoil(gateway)
    found, text = await scraped(gateway)
    assert found == status
    assert "tidegate_" not in text
    gateway.asked.clear()
    found, text = await scraped(Gateway(), who=protocol.Credentials(token="wrong"))
    assert found == 401
    assert "tidegate_" not in text


async def test_who_has_no_right_learns_nothing_of_a_gateway_that_recovers() -> None:
    gateway = Gateway()
    gateway.now = Readiness(Phase.RECOVERING)
    assert (await scraped(gateway, who=protocol.Credentials(token="wrong")))[0] == 401
