"""All metrics, one row each; ``docs/metrics.md`` is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.spi.clients.operators import Phase, Readiness
from tidegate.spi.operate import CertificateEnd, GatewayState, Latency, Overview, Room, SinkStatus
from tidegate.spi.sink import SinkState
from tidegate_admin.server.metrics._seen import (
    Metric,
    Part,
    Sample,
    Samples,
    Seen,
    of_bridges,
    of_count,
    of_destinations,
    of_enum,
    of_kinds,
    of_overview,
    of_readiness,
    of_rooms,
    of_sinks,
    of_totals,
)


def _info(seen: Seen) -> list[Sample]:
    found = seen.overview
    return [] if found is None else [((found.name, found.version, found.store_id), 1.0)]


def _missing(seen: Seen) -> list[Sample]:
    return [((part.value,), float(part in seen.missing)) for part in Part]


def _recovery(found: Readiness) -> float | None:
    if found.phase is not Phase.RECOVERING:
        return 1.0
    return None if found.percent is None else found.percent / 100


def _latency(value_ms: Callable[[Latency], float]) -> Samples:
    """In seconds; nothing when nobody waited."""
    return of_overview(
        lambda found: value_ms(found.confirmation) / 1000 if found.confirmation.count else None
    )


def _rooms(found: Overview) -> Mapping[str, Room]:
    return {
        "held": found.held,
        "in-flight": found.in_flight,
        "stored-cursors": found.stored_memory,
        "unstored-cursors": found.unstored_memory,
        "temporary-files": found.temporary,
    }


def _sink_states(seen: Seen) -> list[Sample]:
    return [
        ((sink.name, state.value), float(state is sink.health.state))
        for sink in (() if seen.sinks is None else seen.sinks.rows)
        for state in SinkState
    ]


def _last_commit(found: SinkStatus) -> float | None:
    return None if found.health.last_commit is None else found.health.last_commit.at / 1e6


def _certificates(value: Callable[[CertificateEnd], float]) -> Samples:
    def samples(seen: Seen) -> list[Sample]:
        found = () if seen.overview is None else seen.overview.certificates
        return [((one.key, one.path), value(one)) for one in found]

    return samples


_WHAT: Final = ("what",)
_FILE: Final = ("option", "path")
_OF: Final = ("destination", "kind")
_SINK: Final = ("sink",)
_RULE: Final = ("bridge", "rule")

METRICS: Final = (
    # State.
    Metric("tidegate_info", "Always 1; the gateway's name, its version, the identity of its store.", _info, ("name", "version", "store_id")),
    Metric("tidegate_ready", "1: clients are let in and what they send is confirmed, as `/health/ready` says.", of_readiness(lambda r: r.is_ready)),
    Metric("tidegate_phase", "1 for the current phase of the gateway.", of_enum(Phase, lambda seen: seen.readiness.phase), ("phase",)),
    Metric("tidegate_recovery_ratio", "Progress of the current step of recovery, 0 to 1; 1 when recovery is over.", of_readiness(_recovery)),
    Metric("tidegate_problems", "Number of reasons why a running gateway is not ready.", of_readiness(lambda r: len(r.problems))),
    Metric("tidegate_warnings", "Number of warnings of `/health/ready`.", of_readiness(lambda r: len(r.warnings))),
    Metric("tidegate_state", "1 for the current state of the gateway, as `tidegate status` shows it.", of_enum(GatewayState, lambda seen: seen.overview and seen.overview.state), ("state",)),
    Metric("tidegate_scrape_missing", "1: the gateway did not answer for this part within 5 s, or its store has failed; the series of the part are missing.", _missing, ("part",)),
    Metric("tidegate_start_time_seconds", "When the gateway started, seconds since the epoch.", of_overview(lambda o: o.started_at / 1e6)),
    # Traffic.
    Metric("tidegate_messages_published", "Messages that clients published.", of_overview(lambda o: o.published.total), is_counter=True),
    Metric("tidegate_messages_delivered", "Messages handed to consumers.", of_overview(lambda o: o.delivered.total), is_counter=True),
    Metric("tidegate_messages_acknowledged", "Messages that consumers acknowledged, or that were handed to consumers that do not acknowledge.", of_overview(lambda o: o.acknowledged.total), is_counter=True),
    Metric("tidegate_messages_dropped", "Messages that no consumer got.", of_overview(lambda o: o.dropped.total), is_counter=True),
    Metric("tidegate_messages_duplicate", "Messages that came again with the same duplicate id, and were discarded.", of_count("publish.messages.duplicates"), is_counter=True),
    Metric("tidegate_confirmations", "Confirmations of durability sent to clients: messages, acknowledgements, subscriptions.", of_overview(lambda o: o.confirmed.total), is_counter=True),
    Metric("tidegate_confirmation_median_seconds", "How long clients waited for confirmations in the last half to one minute, median. Missing when nobody waited.", _latency(lambda found: found.p50_ms)),
    Metric("tidegate_confirmation_p99_seconds", "How long clients waited for confirmations in the last half to one minute, 99th percentile. Missing when nobody waited.", _latency(lambda found: found.p99_ms)),
    Metric("tidegate_events", "Events by name since the gateway started ([events.md](events.md)).", of_kinds("events", "count"), ("event",), is_counter=True),
    # Limits.
    Metric("tidegate_limit_dropped_messages", "Messages lost because a list was at a limit.", of_count("overflow.dropped"), is_counter=True),
    Metric("tidegate_limit_dead_lettered_messages", "Messages moved to a dead-letter queue because a list was at a limit.", of_count("overflow.dead_lettered"), is_counter=True),
    Metric("tidegate_limit_refused_messages", "Publishes refused because a list was at a limit.", of_count("overflow.refused"), is_counter=True),
    Metric("tidegate_limit_lists", "Queues and subscriptions that are at a limit now.", of_count("overflow.lists")),
    Metric("tidegate_held_refusals", "How often somebody was refused because the gateway, a principal or a connection held too much.", of_count("held.refused"), is_counter=True),
    Metric("tidegate_slow_consumers", "Consumers that are slow now.", of_count("consumers.slow")),
    Metric("tidegate_overloaded", "1: the machine is overloaded, and new connections are closed.", of_count("overload.active")),
    Metric("tidegate_overload_refused_connections", "Connections closed because the machine was overloaded.", of_count("overload.refused"), is_counter=True),
    # Certificates.
    Metric("tidegate_certificate_begin_time_seconds", "Time from which a certificate that the configuration names is valid, seconds since the epoch.", _certificates(lambda one: one.begins_at / 1e6), _FILE),
    Metric("tidegate_certificate_end_time_seconds", "Time at which it expires; of a chain the first that does, of authorities (`tls_ca`) the last.", _certificates(lambda one: one.ends_at / 1e6), _FILE),
    # Clients.
    Metric("tidegate_connections", "Clients that are connected.", of_overview(lambda o: o.connections.used)),
    Metric("tidegate_connections_limit", "Maximum number of connected clients.", of_overview(lambda o: o.connections.limit)),
    Metric("tidegate_sessions", "Sessions kept for clients, connected or not.", of_overview(lambda o: o.sessions)),
    Metric("tidegate_subscriptions", "Subscriptions to topics that have a list of their own.", of_overview(lambda o: o.subscriptions)),
    Metric("tidegate_logins_refused", "Logins refused: wrong passwords, expired tokens, unknown certificates.", of_count("logins.refused"), is_counter=True),
    Metric("tidegate_logins_dropped", "Logins refused because too many waited for their check.", of_count("logins.dropped"), is_counter=True),
    Metric("tidegate_logins_waiting", "Logins that wait for their check.", of_count("logins.waiting")),
    Metric("tidegate_spans_sent", "Spans of [traces](traces.md) that the collector took.", of_count("traces.sent"), is_counter=True),
    Metric("tidegate_spans_lost", "Spans of traces that the collector refused, or did not take in time.", of_count("traces.lost"), is_counter=True),
    Metric("tidegate_spans_dropped", "Spans of traces for which there was no room (`queue_max`).", of_count("traces.dropped"), is_counter=True),
    Metric("tidegate_trace_rows_forgotten", "Traced messages that were forgotten before a sink had committed their rows (`rows_max`).", of_count("traces.rows_forgotten"), is_counter=True),
    # Disk and memory.
    Metric("tidegate_backlog_messages", "Messages that the store keeps for at least one list.", of_overview(lambda o: o.backlog)),
    Metric("tidegate_store_bytes", "Space that the store takes.", of_overview(lambda o: o.store.used)),
    Metric("tidegate_store_limit_bytes", "Space that the store may take (`store_limit`); 0: there is no limit.", of_overview(lambda o: o.store.limit)),
    Metric("tidegate_disk_free_bytes", "Free space where the store writes; missing when that is on no disk of this machine.", of_overview(lambda o: o.disk_free)),
    Metric("tidegate_memory_bytes", "Memory held for clients and lists, by purpose; `temporary-files` are on disk.", of_rooms(_rooms, lambda room: room.used), _WHAT),
    Metric("tidegate_memory_limit_bytes", "Limit of `tidegate_memory_bytes`; 0: there is no limit.", of_rooms(_rooms, lambda room: room.limit), _WHAT),
    Metric("tidegate_held_bytes", "Parts of `held` in `tidegate_memory_bytes` ([limits.md](limits.md)).", of_kinds("held", "bytes"), _WHAT),
    # Destinations.
    Metric("tidegate_queues", "Queues.", of_overview(lambda o: o.queues)),
    Metric("tidegate_destinations", "Queues, and topic filters that somebody subscribes to, out of those that `metrics_destinations` covers.", of_totals(lambda t: t.destinations)),
    Metric("tidegate_destinations_full", "Destinations whose producers wait for room.", of_totals(lambda t: t.full)),
    Metric("tidegate_destinations_unreadable", "Queues and subscriptions whose next messages the store cannot read: their consumers get nothing.", of_count("lists.unreadable")),
    Metric("tidegate_destinations_paused", "Destinations whose producers or consumers are paused.", of_totals(lambda t: t.paused)),
    Metric("tidegate_destinations_unattended", "Destinations in which messages wait and which have no consumer, except dead-letter queues.", of_totals(lambda t: t.unattended)),
    Metric("tidegate_dead_letter_messages", "Messages that wait in dead-letter queues.", of_totals(lambda t: t.dead_letters)),
    Metric("tidegate_destination_pending_messages", "Messages that wait.", of_destinations(lambda row: row.pending, lambda t: t.pending), _OF),
    Metric("tidegate_destination_in_flight_messages", "Messages delivered and not acknowledged.", of_destinations(lambda row: row.in_flight, lambda t: t.in_flight), _OF),
    Metric("tidegate_destination_consumers", "Consumers that are served.", of_destinations(lambda row: row.consumers, lambda t: t.consumers), _OF),
    Metric("tidegate_destination_memory_bytes", "Memory that the cursors of the destination hold.", of_destinations(lambda row: row.memory_bytes, lambda t: t.memory_bytes), _OF),
    Metric("tidegate_destination_dropped_messages", "Messages that the lists of the destination have lost since the gateway or the list began.", of_destinations(lambda row: row.dropped, lambda t: t.dropped), _OF),
    Metric("tidegate_destination_full", "1: producers of the destination wait for room.", of_destinations(lambda row: row.is_full), _OF),
    Metric("tidegate_destination_paused", "1: producers or consumers of the destination are paused.", of_destinations(lambda row: row.producers_paused or row.consumers_paused), _OF),
    # Sinks.
    Metric("tidegate_acknowledged_log_bytes", "Size of what the acknowledged log keeps for the sinks.", of_count("acknowledged_log.bytes")),
    Metric("tidegate_acknowledged_log_limit_bytes", "Limit of the acknowledged log (`acknowledged_limit`).", of_count("acknowledged_log.limit")),
    Metric("tidegate_acknowledged_log_refusing", "1: the acknowledged log is too large or too old, and publishes are refused.", of_count("acknowledged_log.refusing")),
    Metric("tidegate_sink_state", "1 for the current state of the sink.", _sink_states, ("sink", "state")),
    Metric("tidegate_sink_problem", "1: the sink has a problem now; `tidegate sink status` says what it is and what to do.", of_sinks(lambda s: bool(s.health.problem)), _SINK),
    Metric("tidegate_sink_late", "1: the sink misses its `lag_goal`.", of_sinks(lambda s: s.health.is_late), _SINK),
    Metric("tidegate_sink_mark", "Highest acknowledgement sequence that the sink's target holds for good; each row of the log has one. Missing before it is known.", of_sinks(lambda s: s.health.mark if s.health.is_mark_known else None), _SINK),
    Metric("tidegate_sink_lag_messages", "Messages that are acknowledged and not yet in the sink's target.", of_sinks(lambda s: s.lag_rows), _SINK),
    Metric("tidegate_sink_lag_bytes", "Bytes of messages that are acknowledged and not yet in the sink's target.", of_sinks(lambda s: s.lag_bytes), _SINK),
    Metric("tidegate_sink_lag_seconds", "Time since the oldest message that is not yet in the sink's target was acknowledged; missing when that is not known.", of_sinks(lambda s: s.lag_seconds), _SINK),
    Metric("tidegate_sink_log_ratio", "Share of the acknowledged log's limit that is kept for the sink, 0 to 1 and above.", of_sinks(lambda s: s.log_share), _SINK),
    Metric("tidegate_sink_last_commit_seconds", "When rows last went into the sink's target, seconds since the epoch; missing before the first time since the start.", of_sinks(_last_commit), _SINK),
    Metric("tidegate_sink_dead_messages", "Rows that went to the sink's dead-letter table; missing when that is not known.", of_sinks(lambda s: s.health.dead_rows), _SINK),
    # Bridges.
    Metric("tidegate_bridge_connected", "1: the rule of the bridge is connected to the other broker, and messages flow.", of_bridges(lambda r: r.is_connected, is_summed=False), _RULE),
    Metric("tidegate_bridge_moved_messages", "Messages that the rule has moved, confirmed at their target.", of_bridges(lambda r: r.moved), _RULE, is_counter=True),
    Metric("tidegate_bridge_moved_bytes", "Bytes of the bodies of messages that the rule has moved.", of_bridges(lambda r: r.moved_bytes), _RULE, is_counter=True),
    Metric("tidegate_bridge_on_the_way_messages", "Messages that the rule took from their source and that are not confirmed at their target yet.", of_bridges(lambda r: r.on_the_way), _RULE),
    Metric("tidegate_bridge_failures", "Attempts of the rule that failed, or could not begin.", of_bridges(lambda r: r.failures), _RULE, is_counter=True),
    Metric("tidegate_bridge_refused_attempts", "How often in a row the message on which the rule is stuck was refused; 0: it is not stuck.", of_bridges(lambda r: r.refused_attempts), _RULE),
    Metric("tidegate_bridge_parked_messages", "Messages that the rule put aside because they were refused (`park_after`).", of_bridges(lambda r: r.parked), _RULE, is_counter=True),
)  # fmt: skip
