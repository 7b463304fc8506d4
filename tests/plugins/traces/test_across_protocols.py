"""Traces at a running gateway, with clients that are not ours and a collector that is sent what they did."""

from __future__ import annotations

import time
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from gateway_process import GatewayProcess
from otlp_collector import Collector, Span
from paho_recorder import Paho, properties
from stomp_recorder import stomp_connect

pytestmark = pytest.mark.interop

TRACE, PRODUCER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PRODUCER}-01"
UNSAMPLED = f"00-{TRACE}-{PRODUCER}-00"
#: OpenTelemetry's numbers of SpanKind.
KIND_CLIENT, KIND_PRODUCER, KIND_CONSUMER = 3, 4, 5


def traces(collector: Collector, **options: object) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in options.items()]
    return "\n".join(
        [
            '[[extensions]]\nplugin = "traces"',
            f'endpoint = "{collector.endpoint}"',
            'batch_interval = "50ms"',
            *lines,
        ]
    )


POLICIES = """
[[destinations]]
match = "queue://poison"
max_deliveries = 1
dead_letter = "dead"
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """Traces what comes with a context, and nothing else."""
    extra = traces(collector, sample_ratio=0.0, service_name="harbour") + POLICIES
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), extra=extra) as running:
        yield running
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()


def user_properties(message: object) -> dict[str, str]:
    return dict(getattr(message.properties, "UserProperty", []))  # type: ignore[attr-defined]


def test_from_stomp_to_mqtt_5(gateway: GatewayProcess, collector: Collector) -> None:
    with Paho(gateway.mqtt_port, "consumer", version=paho.MQTTv5) as mqtt:
        mqtt.subscribe("ships/arrived", 1)
        stomp, heard = stomp_connect(gateway)
        headers = {"traceparent": SAMPLED, "tracestate": "a=1,b=2", "receipt": "r"}
        stomp.send("/topic/ships.arrived", b"ship", headers=headers)
        assert heard.receipts.get(timeout=60) == "r"
        got = user_properties(mqtt.next())
        stomp.disconnect()
    send, process, settle = collector.named(
        "send ships.arrived", "process ships.arrived", "settle ships.arrived"
    )
    assert (send.trace, send.parent, send.kind) == (TRACE, PRODUCER, KIND_PRODUCER)
    assert (process.trace, process.parent, process.kind) == (TRACE, send.id, KIND_CONSUMER)
    assert process.links == ((TRACE, send.id),)
    assert (settle.trace, settle.parent, settle.kind) == (TRACE, process.id, KIND_CLIENT)
    assert settle.links == ((TRACE, send.id),)
    assert (process.outcome, settle.outcome) == ("acknowledged", "acknowledged")
    assert not any(span.is_error for span in (send, process, settle))
    assert send.began <= send.ended <= process.ended <= settle.ended
    # The consumer goes on from the span of this gateway; what others noted stays behind it.
    assert got["traceparent"] == f"00-{TRACE}-{send.id}-01"
    own, _, others = got["tracestate"].partition(",")
    assert own.startswith("tidegate=")
    assert own.endswith(send.id)
    assert others == "a=1,b=2"
    assert send.resource["service.name"] == "harbour"
    assert send.attributes["messaging.system"] == "tidegate"
    assert send.attributes["messaging.destination.name"] == "ships.arrived"
    assert send.attributes["messaging.operation.type"] == "send"
    assert send.attributes["messaging.message.body.size"] == 4
    assert send.attributes["network.protocol.name"] == "stomp"
    assert process.attributes["network.protocol.name"] == "mqtt"
    assert process.attributes["messaging.client.id"] == "consumer"
    assert process.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]


def test_from_mqtt_5_to_stomp(gateway: GatewayProcess, collector: Collector) -> None:
    stomp, heard = stomp_connect(gateway)
    stomp.subscribe("/queue/orders", "1", ack="client-individual")
    with Paho(gateway.mqtt_port, "producer", version=paho.MQTTv5) as mqtt:
        pairs = [("before", "1"), ("traceparent", SAMPLED), ("after", "2")]
        mqtt.publish(
            "$queue/orders", b"order", 1, properties=properties("PUBLISH", UserProperty=pairs)
        )
    frame = heard.messages.get(timeout=60)
    stomp.ack(frame.headers["ack"])
    send, settle = collector.named("send orders", "settle orders")
    assert frame.headers["traceparent"] == f"00-{TRACE}-{send.id}-01"
    assert (frame.headers["before"], frame.headers["after"]) == ("1", "2")
    assert send.attributes["messaging.client.id"] == "producer"
    assert settle.outcome == "acknowledged"
    stomp.disconnect()


def test_what_is_not_sampled_passes_unaltered(
    gateway: GatewayProcess, collector: Collector
) -> None:
    with Paho(gateway.mqtt_port, "other", version=paho.MQTTv5) as mqtt:
        mqtt.subscribe("plain/#", 1)
        for name, pairs in {
            "unsampled": [
                ("traceparent", UNSAMPLED),
                ("tracestate", "x=y"),
                ("k", "1"),
                ("k", "2"),
            ],
            "malformed": [("traceparent", "01-no"), ("k", "v")],
            "malformed-but-sampled": [("traceparent", "00-" + "z" * 32 + "-" + "0" * 16 + "-01")],
            "without": [("k", "v")],
        }.items():
            mqtt.publish(
                f"plain/{name}", b"", 1, properties=properties("PUBLISH", UserProperty=pairs)
            )
            assert mqtt.next().properties.UserProperty == pairs
        mqtt.publish("plain/nothing", b"", 1)
        assert not hasattr(mqtt.next().properties, "UserProperty")
        # What is traced comes last, so nothing is on its way any more.
        traced = properties("PUBLISH", UserProperty=[("traceparent", SAMPLED)])
        mqtt.publish("plain/traced", b"", 1, properties=traced)
        mqtt.next()
    collector.named("settle plain.traced")
    assert {span.name.partition(" ")[2] for span in collector.spans if "plain" in span.name} == {
        "plain.traced"
    }


def of(spans: list[Span], *names: str) -> list[Span]:
    return [span for span in spans if span.name in names]


def test_rejected_then_dead_lettered(gateway: GatewayProcess, collector: Collector) -> None:
    stomp, heard = stomp_connect(gateway)
    stomp.subscribe("/queue/poison", "1", ack="client-individual")
    stomp.subscribe("/queue/dead", "2", ack="client-individual")
    stomp.send("/queue/poison", b"x", headers={"traceparent": SAMPLED})
    stomp.nack(heard.messages.get(timeout=60).headers["ack"])
    dead = heard.messages.get(timeout=60)
    assert dead.headers["destination"] == "/queue/dead"
    stomp.ack(dead.headers["ack"])
    send, failed, settled, again = collector.named(
        "send poison", "process poison", "settle poison", "process dead"
    )
    assert (failed.outcome, settled.outcome) == ("dead-lettered", "dead-lettered")
    assert failed.is_error
    assert settled.is_error
    assert settled.problem
    assert (again.parent, again.outcome, again.is_error) == (send.id, "acknowledged", False)
    assert not of(collector.spans, "send dead")  # nobody published it there
    assert dead.headers["traceparent"] == f"00-{TRACE}-{send.id}-01"
    stomp.disconnect()


def test_a_rejected_message_comes_again(gateway: GatewayProcess, collector: Collector) -> None:
    stomp, heard = stomp_connect(gateway)
    stomp.subscribe("/queue/again", "1", ack="client-individual")
    stomp.send("/queue/again", b"x", headers={"traceparent": SAMPLED})
    stomp.nack(heard.messages.get(timeout=60).headers["ack"])
    stomp.ack(heard.messages.get(timeout=60).headers["ack"])
    collector.named("settle again")
    first, second = of(collector.spans, "process again")
    assert (first.outcome, first.is_error) == ("returned", True)
    assert (second.outcome, second.is_error) == ("acknowledged", False)
    assert second.attributes["tidegate.delivery_count"] == 2
    stomp.disconnect()


def test_an_expired_message_ends_so(gateway: GatewayProcess, collector: Collector) -> None:
    stomp, heard = stomp_connect(gateway)
    soon = int(time.time() * 1000) + 300
    stomp.send(
        "/queue/late", b"x", headers={"traceparent": SAMPLED, "expires": str(soon), "receipt": "r"}
    )
    heard.receipts.get(timeout=60)
    while time.time() * 1000 <= soon:
        time.sleep(0.01)
    stomp.subscribe("/queue/late", "1")
    send, settle = collector.named("send late", "settle late")
    assert (settle.outcome, settle.is_error, settle.parent) == ("expired", True, send.id)
    assert not of(collector.spans, "process late")
    stomp.disconnect()


def test_a_transaction_is_sent_when_it_is_committed(
    gateway: GatewayProcess, collector: Collector
) -> None:
    stomp, heard = stomp_connect(gateway)
    for name in ("aborted", "committed"):
        transaction = stomp.begin()
        stomp.send(
            f"/queue/{name}", b"x", transaction=transaction, headers={"traceparent": SAMPLED}
        )
        (stomp.abort if name == "aborted" else stomp.commit)(transaction)
    stomp.subscribe("/queue/committed", "1")
    got = heard.messages.get(timeout=60)
    (send,) = collector.named("send committed")
    collector.named("process committed")
    assert got.headers["traceparent"] == f"00-{TRACE}-{send.id}-01"
    assert not of(collector.spans, "send aborted")
    stomp.disconnect()


def test_retained_and_wills(gateway: GatewayProcess, collector: Collector) -> None:
    traced = properties("PUBLISH", UserProperty=[("traceparent", SAMPLED)])
    with Paho(gateway.mqtt_port, "keeper", version=paho.MQTTv5) as mqtt:
        mqtt.subscribe("kept/#", 1)
        mqtt.publish("kept/state", b"on", 1, retain=True, properties=traced)
        live = user_properties(mqtt.next())
        (send,) = collector.named("send kept.state")
        collector.named("settle kept.state")
        assert live["traceparent"] == f"00-{TRACE}-{send.id}-01"
        doomed = Paho(gateway.mqtt_port, "doomed", version=paho.MQTTv5)
        will = properties("WILLMESSAGE", UserProperty=[("traceparent", SAMPLED)])
        doomed.client.will_set("kept/will", b"gone", 1, properties=will)
        doomed.connect()
        doomed.vanish()
        assert user_properties(mqtt.next())["traceparent"].startswith(f"00-{TRACE}-")
        (last,) = collector.named("send kept.will")
        assert last.parent == PRODUCER
        collector.named("settle kept.will")
        doomed.client.loop_stop()
    # Who comes later gets the retained message as it was published: no part of that trace.
    before = len(of(collector.spans, "process kept.state"))
    with Paho(gateway.mqtt_port, "later", version=paho.MQTTv5) as late:
        late.subscribe("kept/state", 1)
        message = late.next()
        assert message.retain
        assert user_properties(message) == {"traceparent": SAMPLED}
        late.publish("kept/marker", b"", 1, properties=traced)
    collector.named("send kept.marker")
    assert len(of(collector.spans, "process kept.state")) == before
