"""The brokers that the benchmark can run: Tidegate and its peers, each with its fair settings."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from benchkit import access

BENCHMARKS: Final = Path(__file__).resolve().parent.parent
PEERS_SCRIPT: Final = BENCHMARKS / "peers" / "peers.sh"

Protocol = Literal["stomp", "mqtt"]
TIDEGATE: Final = "tidegate"
#: Tidegate again, with the other journal types (`--journal-types`).
JOURNAL_TYPES: Final = ("tidegate-asyncio", "tidegate-mapped")
#: Tidegate again, with access control (`--acl`).
WITH_ACL: Final = "tidegate-acl"
#: All that is Tidegate.
OURS: Final = (TIDEGATE, *JOURNAL_TYPES, WITH_ACL)


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """What a load generator has to know to treat one broker fairly.

    `durability` says what has happened to a persistent message when its confirmation leaves;
    `durability_transient` the same where nobody but subscribers that leave nothing behind wants it.
    Headers are `key:value`, as the load generator's options take them; `queue_*` are for a
    queue's messages, `topic_*` for a topic's. `mqtt5` says whether it speaks MQTT 5.0 beside 3.1.1,
    `retained_wildcards` whether a filter with wildcards is given the retained messages that it matches.
    `store_options` are lines of Tidegate's `[store]` table; `rules` go to a file for `tidegate-acl`.
    """

    name: str
    protocols: frozenset[Protocol]
    durability: str
    durability_transient: str = "in memory: no durable subscriber"
    user: str = ""
    password: str = ""
    queue_send: tuple[str, ...] = ()
    queue_subscribe: tuple[str, ...] = ()
    topic_send: tuple[str, ...] = ()
    topic_subscribe: tuple[str, ...] = ()
    mqtt5: bool = False
    retained_wildcards: bool = True
    store_options: tuple[str, ...] = ()
    rules: str = ""


_BOTH: Final[frozenset[Protocol]] = frozenset({"stomp", "mqtt"})
_MQTT: Final[frozenset[Protocol]] = frozenset({"mqtt"})

BROKERS: Final[dict[str, BrokerSpec]] = {
    spec.name: spec
    for spec in (
        BrokerSpec(
            TIDEGATE,
            _BOTH,
            "synced (journal, sync = always)",
            durability_transient="QoS 1: synced all the same; STOMP auto: in memory",
            mqtt5=True,
        ),
        BrokerSpec(
            "tidegate-asyncio",
            _BOTH,
            "synced (journal_type = ASYNCIO)",
            mqtt5=True,
            store_options=('journal_type = "ASYNCIO"',),
        ),
        BrokerSpec(
            "tidegate-mapped",
            _BOTH,
            "synced (journal_type = MAPPED)",
            mqtt5=True,
            store_options=('journal_type = "MAPPED"',),
        ),
        BrokerSpec(
            WITH_ACL,
            _BOTH,
            f"synced (access by {access.RULES} rules)",
            mqtt5=True,
            rules=access.rules(),
        ),
        BrokerSpec(
            "artemis",
            _BOTH,
            "synced (NIO journal)",
            user="bench",
            password="bench",
            queue_send=("destination-type:ANYCAST",),
            # Artemis counts bytes in flight, 10 KiB unless told: half as fast.
            queue_subscribe=("subscription-type:ANYCAST", "consumer-window-size:1000000"),
            topic_send=("destination-type:MULTICAST",),
            topic_subscribe=("subscription-type:MULTICAST", "consumer-window-size:1000000"),
            mqtt5=True,
        ),
        BrokerSpec(
            "classic",
            _BOTH,
            "synced, or consumed before (KahaDB)",
            queue_subscribe=("activemq.prefetchSize:1000",),
            topic_subscribe=("activemq.prefetchSize:32766",),
        ),
        BrokerSpec(
            "rabbitmq",
            _BOTH,
            "synced, or consumed before",
            user="guest",
            password="guest",
            queue_subscribe=("prefetch-count:1000",),
            topic_subscribe=("prefetch-count:1000",),
            retained_wildcards=False,
        ),
        BrokerSpec(
            "mosquitto",
            _MQTT,
            "NOT synced (saved each second)",
            "NOT synced (saved each second)",
            mqtt5=True,
        ),
        BrokerSpec("nats", _MQTT, "NOT synced (every 2 min)", "NOT synced (every 2 min)"),
    )
}

PEERS: Final = tuple(name for name in BROKERS if name not in OURS)


@dataclass(frozen=True, slots=True)
class Address:
    """Where one protocol of a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read HOST:PORT.

        Raises: ValueError when it is something else.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host, int(port))


@dataclass(slots=True)
class Target:
    """One broker of this benchmark run: started by us, or already running somewhere."""

    spec: BrokerSpec
    version: str = ""
    remote: dict[Protocol, Address] = field(default_factory=dict[Protocol, Address])
    user: str = ""
    password: str = ""

    @property
    def ours(self) -> bool:
        """Whether the benchmark starts and stops it."""
        return not self.remote

    def speaks(self, protocol: Protocol) -> bool:
        """Whether this run can reach the broker by the protocol."""
        return protocol in (self.remote or self.spec.protocols)


class PeerScriptError(Exception):
    """`peers.sh` refused; the text is its last line."""


def peers_script(*arguments: str) -> str:
    """Run `peers.sh` with the arguments and return what it printed.

    Raises: PeerScriptError when it fails.
    """
    done = subprocess.run(
        [str(PEERS_SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise PeerScriptError(lines[-1] if lines else f"peers.sh {' '.join(arguments)} failed")
    return done.stdout.strip()


def tidegate_config(
    data_directory: Path,
    ports: dict[Protocol, int],
    store_options: Sequence[str] = (),
    rules: Path | None = None,
) -> str:
    """Return the TOML file of the measured gateway: the default store and its default sync.

    Args:
        ports: the loopback port of each protocol.
        store_options: see `BrokerSpec`.
        rules: the file of rules for `tidegate-acl`; None: there is no access control.
    """
    lines = ["[broker]", 'name = "bench"', f"data_directory = {toml_string(str(data_directory))}"]
    if store_options:
        lines += ["", "[store]", 'plugin = "journal"', *store_options]
    if rules is not None:
        lines += ["", "[[extensions]]", 'plugin = "acl"', f"rules = {toml_string(str(rules))}"]
    for protocol, port in ports.items():
        lines += ["", "[[listeners]]", f'protocol = "{protocol}"', f'bind = "127.0.0.1:{port}"']
    return "\n".join(lines) + "\n"


def toml_string(text: str) -> str:
    """Quote a text as a basic TOML string (TOML 1.0 "String")."""
    escaped = "".join(
        f"\\u{ord(c):04x}" if ord(c) < 0x20 or c == "\x7f" else f"\\{c}" if c in '"\\' else c
        for c in text
    )
    return f'"{escaped}"'
