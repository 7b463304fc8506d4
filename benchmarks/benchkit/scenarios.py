"""The loads that every broker is put under, and the figures that Tidegate has to reach in them."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from benchkit.brokers import BrokerSpec, Protocol


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load.

    `window` is the most unconfirmed sends of each producer. With `topic` set, STOMP uses a topic
    and each consumer gets every message; MQTT always does. `clean` gives MQTT consumers clean
    sessions, for which a broker may keep messages in memory alone. `five` is MQTT 5.0. At QoS 0, which
    nobody confirms, `window` is of messages that have not reached every consumer.
    """

    name: str
    title: str
    protocol: Protocol
    producers: int = 1
    consumers: int = 1
    window: int = 256
    destinations: int = 1
    size_bytes: int = 256
    qos: int = 1
    five: bool = False
    clean: bool = False
    topic: bool = False
    default: bool = True

    @property
    def is_large(self) -> bool:
        """Whether it is the disk's throughput that counts, and not its syncs."""
        return self.size_bytes >= 1 << 20

    @property
    def copies(self) -> int:
        """How many consumers get each message."""
        fans_out = self.topic or self.protocol == "mqtt"
        return self.consumers // self.destinations if fans_out else 1

    def suits(self, spec: BrokerSpec) -> bool:
        """Say whether the broker can be put under this load at all."""
        return spec.mqtt5 or not self.five

    def durability(self, spec: BrokerSpec) -> str:
        """Return what the broker has done with a message of this load when it confirms it."""
        if self.protocol == "mqtt" and self.qos == 0:
            return "never confirmed (QoS 0)"
        return spec.durability_transient if self.clean or self.topic else spec.durability

    def arguments(self, spec: BrokerSpec) -> list[str]:
        """Return the load generator's options for this load on that broker."""
        form = "bench/{}/{}" if self.protocol == "mqtt" else "/queue/bench.{}.{}"
        if self.topic and self.protocol == "stomp":
            form = "/topic/bench.{}.{}"
        names = ",".join(form.format(self.name, n) for n in range(self.destinations))
        arguments = [
            f"-protocol={self.protocol}{'5' if self.five else ''}",
            f"-producers={self.producers}",
            f"-consumers={self.consumers}",
            f"-window={self.window}",
            f"-size={self.size_bytes}",
            f"-destination={names}",
        ]
        if self.protocol == "mqtt":
            return [*arguments, f"-qos={self.qos}", f"-clean={str(self.clean).lower()}"]
        send = spec.topic_send if self.topic else spec.queue_send
        subscribe = spec.topic_subscribe if self.topic else spec.queue_subscribe
        arguments += ["-ack=client-individual", f"-fanout={str(self.topic).lower()}"]
        arguments += [f"-send-header={header}" for header in send]
        return arguments + [f"-subscribe-header={header}" for header in subscribe]


SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario("stomp-1x1", "STOMP, 1 producer (window 256) to 1 consumer", "stomp"),
        Scenario("stomp-window1", "STOMP, one message at a time", "stomp", window=1),
        Scenario(
            "stomp-4x4-4q",
            "STOMP, 4 producers to 4 consumers over 4 queues",
            "stomp",
            producers=4,
            consumers=4,
            destinations=4,
        ),
        Scenario(
            "stomp-4x4-1q",
            "STOMP, 4 producers to 4 consumers on 1 queue",
            "stomp",
            producers=4,
            consumers=4,
        ),
        Scenario("mqtt-qos1-1x1", "MQTT QoS 1, 1 publisher to 1 subscriber", "mqtt"),
        Scenario(
            "mqtt-qos1-4x1",
            "MQTT QoS 1, 4 publishers (64 in flight each) to 1 subscriber",
            "mqtt",
            producers=4,
            window=64,
        ),
        Scenario(
            "mqtt-qos1-4x1-clean",
            "MQTT QoS 1, 4 publishers to 1 subscriber with a clean session",
            "mqtt",
            producers=4,
            window=64,
            clean=True,
        ),
        Scenario(
            "mqtt5-qos1-4x1",
            "MQTT 5.0 QoS 1, 4 publishers (64 in flight each) to 1 subscriber",
            "mqtt",
            producers=4,
            window=64,
            five=True,
            default=False,
        ),
        Scenario(
            "mqtt-qos0-1x100",
            "MQTT QoS 0, 1 publisher to 100 subscribers",
            "mqtt",
            consumers=100,
            qos=0,
            clean=True,
        ),
        Scenario(
            "mqtt5-qos0-1x100",
            "MQTT 5.0 QoS 0, 1 publisher to 100 subscribers",
            "mqtt",
            consumers=100,
            qos=0,
            clean=True,
            five=True,
            default=False,
        ),
        Scenario(
            "mqtt-window1", "MQTT QoS 1, one message at a time", "mqtt", window=1, default=False
        ),
        Scenario(
            "mqtt-qos2-1x1", "MQTT QoS 2, 1 publisher to 1 subscriber", "mqtt", qos=2, default=False
        ),
        Scenario(
            "stomp-topic-1x4",
            "STOMP topic, 1 producer to 4 subscribers",
            "stomp",
            consumers=4,
            topic=True,
            default=False,
        ),
        Scenario(
            "stomp-1x1-16k",
            "STOMP, 1 producer to 1 consumer, 16 KiB bodies",
            "stomp",
            size_bytes=16384,
            default=False,
        ),
        Scenario(
            "stomp-1x1-1m",
            "STOMP, 1 producer (window 8) to 1 consumer, 1 MiB bodies",
            "stomp",
            size_bytes=1 << 20,
            window=8,
            default=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class RateGoal:
    """Tidegate's messages a second are at least `factor` times the peer's."""

    scenario: str
    peer: str
    factor: float


@dataclass(frozen=True, slots=True)
class FloorGoal:
    """Tidegate's median confirm takes at most `factor` times the least that it could take."""

    scenario: str
    factor: float


@dataclass(frozen=True, slots=True)
class WriteGoal:
    """Tidegate's body bytes a second are at least `factor` times what `dd oflag=dsync` writes."""

    scenario: str
    factor: float


@dataclass(frozen=True, slots=True)
class AclGoal:
    """With access control Tidegate's messages a second are at least `factor` of those without."""

    scenario: str
    factor: float


Goal: TypeAlias = RateGoal | FloorGoal | WriteGoal | AclGoal

GOALS: Final[tuple[Goal, ...]] = (
    RateGoal("stomp-1x1", "artemis", 1.3),
    RateGoal("stomp-1x1", "classic", 8.0),
    FloorGoal("stomp-window1", 3.0),
    WriteGoal("stomp-1x1-1m", 0.5),
    RateGoal("mqtt-qos1-4x1", "artemis", 1.5),
    RateGoal("mqtt-qos1-4x1", "mosquitto", 0.6),  # which does not sync; the next one is to pass it
    AclGoal("stomp-1x1", 0.95),
    AclGoal("mqtt-qos1-4x1", 0.95),
    AclGoal("mqtt-qos0-1x100", 0.95),
)
