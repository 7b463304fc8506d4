"""Options of ``[[extensions]] plugin = "bridge"``, and the checks across them."""

from __future__ import annotations

import enum
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidegate.spi import ConfigError, Kind, names, option
from tidegate.spi.clients.tls import read_pair
from tidegate.spi.private_files import problem_of_others
from tidegate_bridge._names import Names, is_queue_like, overlap

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_PASSWORD_BYTES_MAX: Final = 64 * 1024
#: The default port of brokers, by scheme.
PORTS: Final = {"stomp": 61613, "stomps": 61614, "mqtt": 1883, "mqtts": 8883}


class Direction(enum.Enum):
    """Which way messages go. IN: from the other broker to the gateway."""

    IN = "in"
    OUT = "out"


class MqttVersion(enum.Enum):
    """The protocol's version."""

    V5 = "5.0"
    V311 = "3.1.1"


class JmsType(enum.Enum):
    """What a JMS broker makes of a message. AUTO: text if the message says so."""

    AUTO = "auto"
    TEXT = "text"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """One rule: what goes where."""

    name: str = option(help="Of the rule, unique in its bridge: letters, digits, `-` and `_`.")
    direction: Direction = option(help="`in` from the other broker, `out` to it.")
    remote: str = option(
        help="The destination at the other broker, as its clients write it: `/queue/orders`, `/topic/prices.>`, an "
        "MQTT topic. A wildcard at its end goes with one at the end of `local`: the rest of the name is kept."
    )
    local: str = option(
        help="The destination here, `queue://orders` or `topic://prices.>`. Without a wildcard all that matches goes to one."
    )
    selector: str = option(
        "",
        help="Only messages that it selects, by headers (SQL-92, as in JMS). With `in` the other broker evaluates it; "
        "an error with MQTT, and with RabbitMQ, which have none.",
    )
    durable: str = option(
        "",
        help="With `in` from a STOMP topic: the name of a durable subscription there, so that nothing is missed while the bridge "
        "is away. MQTT always has one.",
    )
    jms_type: JmsType = option(
        JmsType.AUTO,
        help="With `out` over STOMP: whether a JMS broker makes a TextMessage or a BytesMessage of it. `auto`: text where the content "
        "type says so, or where the message was a TextMessage when it came.",
    )
    headers: dict[str, str] = option(
        {},
        help="Over STOMP: headers for the SUBSCRIBE of the rule (`in`), or for each SEND (`out`), as the other broker wants them.",
    )


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """One ``[[extensions]]`` table: a bridge to one broker. Sizes are bytes, times seconds."""

    name: str = option(help="Of the bridge: letters, digits, `-` and `_`.")
    remote: str = option(
        help="The other broker: `stomp://HOST:PORT`, `stomps://` with TLS, `mqtt://` or `mqtts://`."
    )
    rules: tuple[RuleOptions, ...] = option(
        (),
        help="What goes where: one `[[extensions.rules]]` table each. Each rule has a "
        "connection of its own and keeps its order. A bridge that only takes the queues of "
        "a drain (`tidegate drain --hand-over`) needs none.",
    )
    user: str = option(
        "", help="User name of the bridge at the other broker. Left out: it logs in without a user."
    )
    password_file: Path | None = option(
        None,
        help="File with that user's password in one line; nobody else may have the "
        "right to read it.",
    )
    tls_ca: Path | None = option(
        None,
        help="PEM file with the authorities that the other broker's certificate may come from. Left out: those of the system.",
    )
    tls_certificate: Path | None = option(
        None, help="PEM file with a certificate that the bridge shows there."
    )
    tls_key: Path | None = option(
        None, help="PEM file with its private key, not encrypted; required with `tls_certificate`."
    )
    virtual_host: str = option(
        "", help="STOMP: the `host` of CONNECT, RabbitMQ's virtual host. Left out: the host's name."
    )
    client_id: str = option(
        "",
        help="The bridge's client id at the other broker, followed by the rule's name. No "
        "other client may use it. Left out: `tidegate-` and the bridge's name.",
    )
    mqtt_version: MqttVersion = option(
        MqttVersion.V5,
        help="MQTT: 3.1.1 for a broker that has no 5.0. It carries a body and nothing else: no headers, no expiry.",
    )
    principal: str = option(
        "bridge",
        help="Who the bridge is here, for access control and quotas. It needs no password: whoever writes this file is trusted.",
    )
    window: int = option(
        1000,
        minimum=1,
        maximum=60_000,
        help="Messages of one rule that may be on the way and unconfirmed.",
        act="no more is taken from the source until some are confirmed",
    )
    window_bytes: int = option(
        16 << 20,
        kind=Kind.SIZE,
        minimum=1024,
        maximum=1 << 30,
        help="The same in bytes of bodies; one message may exceed it. Bounds the memory of gateway and bridge.",
        act="no more is taken from the source until some are confirmed",
    )
    message_limit: int = option(
        64 << 20,
        kind=Kind.SIZE,
        minimum=1024,
        maximum=1 << 30,
        help="Largest body. A rule stops at a larger one, and says so, until this is raised "
        "or the message is gone.",
        act="the rule stops there and nothing is lost",
    )
    connect_timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=300,
        help="How long the other broker may take to accept a connection.",
        act="the attempt is over, and is made again",
    )
    reconnect_min: float = option(
        0.5,
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=3600,
        help="How long a rule waits after an error before it tries again; doubled each time.",
    )
    reconnect_max: float = option(
        30.0, kind=Kind.DURATION, minimum=0.01, maximum=3600, help="How long it waits at most."
    )
    hops_max: int = option(
        4,
        minimum=1,
        maximum=100,
        help="How many bridges a message may go through. Guards against bridges that send in a circle.",
        act="a copy of a topic is dropped; a queue's rule stops at the message and says so",
    )
    park_after: int = option(
        0,
        maximum=1000,
        help="How often in a row the other broker, or a limit here, may refuse the same "
        "outgoing message before it is put aside into the queue `parked.BRIDGE.RULE` here, "
        "if a message behind it is then accepted. 0: never, the rule waits.",
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """The checked options. Attributes, by rule: names, is_echoed (another rule brings it back)."""

    scheme: str
    host: str
    port: int
    password: str = field(repr=False)
    names: tuple[Names, ...]
    is_echoed: tuple[bool, ...]

    @property
    def is_mqtt(self) -> bool:
        return self.scheme.startswith("mqtt")


def checked(options: BridgeOptions) -> Checked:
    """Check everything that can be checked before the start. Raises: ConfigError."""
    for name, key in (
        (options.name, "name"),
        *((rule.name, "rules.name") for rule in options.rules),
    ):
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} must be letters, digits, '-' and '_', at most 63, and begin with a letter or digit",
                key=key,
            )
    if not options.principal or options.principal == "anonymous":
        raise ConfigError(
            'must name somebody, and not "anonymous"; left out, it is "bridge"', key="principal"
        )
    if options.reconnect_max < options.reconnect_min:
        raise ConfigError("must be at least `reconnect_min`", key="reconnect_max")
    scheme, host, port = _remote(options.remote)
    is_mqtt = scheme.startswith("mqtt")
    _check_tls(options, scheme)
    if is_mqtt and options.virtual_host:
        raise ConfigError("has no effect with MQTT: remove it", key="virtual_host")
    if not is_mqtt and options.mqtt_version is not MqttVersion.V5:
        raise ConfigError("has no effect with STOMP: remove it", key="mqtt_version")
    if options.password_file is not None and not options.user:
        raise ConfigError("has no effect without `user`", key="password_file")
    found: list[Names] = []
    for number, rule in enumerate(options.rules):
        try:
            if any(other.name == rule.name for other in options.rules[:number]):
                raise ConfigError("another rule has this name: take another one", key="name")
            found.append(_check_rule(rule, is_mqtt))
        except ConfigError as error:
            raise error.at(prefix=f"rules[{number}]") from None
    return Checked(
        scheme,
        host,
        port,
        _password(options.password_file),
        tuple(found),
        _echoed(options, is_mqtt),
    )


def _remote(written: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(written)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigError(f"{written!r}: {error}", key="remote") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "must not hold a user or password; write `user` and `password_file`", key="remote"
        )
    if parts.scheme not in PORTS or not host or parts.path.strip("/") or parts.query:
        known = ", ".join(f"{scheme}://HOST:PORT" for scheme in PORTS)
        raise ConfigError(f"{written!r} is none of {known}", key="remote")
    return parts.scheme, host, port or PORTS[parts.scheme]


def _check_tls(options: BridgeOptions, scheme: str) -> None:
    written = [key for key in ("tls_ca", "tls_certificate", "tls_key") if getattr(options, key)]
    if written and scheme not in ("stomps", "mqtts"):
        raise ConfigError(f"has no effect with {scheme}://; write {scheme}s://", key=written[0])
    if options.tls_certificate is not None or options.tls_key is not None:
        read_pair(options.tls_certificate, options.tls_key)
    if options.tls_ca is not None:
        try:
            ssl.create_default_context(cafile=str(options.tls_ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{options.tls_ca}: holds no certificates in PEM form that can be read: {error}",
                key="tls_ca",
            ) from None


def _password(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        problem = problem_of_others(path)
        if problem:
            raise ConfigError(f"{path}: {problem}", key="password_file")
        with path.open("rb") as file:
            data = file.read(_PASSWORD_BYTES_MAX + 1)
        text = data.decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", key="password_file") from None
    if not text or "\n" in text or len(data) > _PASSWORD_BYTES_MAX:
        raise ConfigError(f"{path}: must hold the password in one line", key="password_file")
    return text


def _check_rule(rule: RuleOptions, is_mqtt: bool) -> Names:
    """Raises: ConfigError."""
    if not (names.is_queue(rule.local) or names.is_topic(rule.local)):
        raise ConfigError(f"{rule.local!r} must be queue://NAME or topic://NAME", key="local")
    try:
        names.check_filter(names.name_of(rule.local))
    except ValueError as error:
        raise ConfigError(str(error), key="local") from None
    is_in = rule.direction is Direction.IN
    if is_mqtt:
        for key, is_set in (
            ("durable", bool(rule.durable)),
            ("headers", bool(rule.headers)),
            ("jms_type", rule.jms_type is not JmsType.AUTO),
        ):
            if is_set:
                raise ConfigError("has no effect with MQTT: remove it", key=key)
        if is_in and rule.selector:
            raise ConfigError(
                "MQTT has no selectors: bridge to a queue here, and select when consuming from it",
                key="selector",
            )
    if rule.durable and (not is_in or is_queue_like(rule.remote)):
        raise ConfigError(
            "is for topics that are bridged in; a queue keeps its messages by itself", key="durable"
        )
    if is_in and rule.jms_type is not JmsType.AUTO:
        raise ConfigError('has an effect with direction = "out" only: remove it', key="jms_type")
    return Names(rule.remote, rule.local, is_in=is_in, is_mqtt=is_mqtt)


def _echoed(options: BridgeOptions, is_mqtt: bool) -> tuple[bool, ...]:
    """Rules whose messages another rule brings back. Raises: ConfigError for an endless loop."""
    rules: Sequence[RuleOptions] = options.rules
    echoed = [False] * len(rules)
    for (one, rule), (two, other) in combinations(enumerate(rules), 2):
        if rule.direction is other.direction:
            continue
        if not (overlap(rule.local, other.local) and overlap(rule.remote, other.remote)):
            continue
        key = f"rules[{two}].direction"
        if names.is_queue(rule.local) or is_queue_like(rule.remote):
            raise ConfigError(
                f"a message would go in and out for ever: rule {rule.name!r} has the same queue the other way round; "
                "remove one of the two",
                key=key,
            )
        if is_mqtt and options.mqtt_version is MqttVersion.V311:
            raise ConfigError(
                f"rule {rule.name!r} has the same topic the other way round, and MQTT 3.1.1 has no headers to tell what "
                'came from here: write mqtt_version = "5.0", or remove one of the two',
                key=key,
            )
        echoed[one] = echoed[two] = True
    return tuple(echoed)
