"""What `tidegate mqtt` reads from its options and prints of a message; no connection here.

Every refusal is a `typer.BadParameter` that names the option.
"""

from __future__ import annotations

import json
import math
import ssl
import sys
import urllib.parse
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tidegate.spi.printable import printable_json
from tidegate_protocols.commands.values import bad, read_time, text_of, write_body

#: Where the password comes from; never from an argument, which every user of the machine can read.
PASSWORD_VARIABLE: Final = "TIDEGATE_MQTT_PASSWORD"
DEFAULT_URL: Final = "mqtt://127.0.0.1:1883"
#: The largest Four Byte Integer; as a session expiry interval it means "never" (5.0, 3.1.2.11.2).
SECONDS_MAX: Final = 0xFFFF_FFFF
KEEP_ALIVE_MAX: Final = 65_535
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
#: Where brokers serve MQTT over WebSocket when the URL names no path.
_WEBSOCKET_PATH: Final = "/mqtt"


class Version(StrEnum):
    """The protocol versions."""

    V31 = "3.1"
    V311 = "3.1.1"
    V5 = "5"


class Output(StrEnum):
    """How a received message is printed."""

    PLAIN = "plain"
    VERBOSE = "verbose"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the broker is. Attributes: path: of the WebSocket; "" for plain TCP."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MessageProperties:
    """The MQTT 5 properties of a message. Attributes: expiry_s, delay_s (of a will): seconds."""

    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None
    expiry_s: int | None = None
    user: tuple[tuple[str, str], ...] = ()
    is_text: bool = False
    delay_s: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == MessageProperties()


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes when the connection ends without a DISCONNECT."""

    topic: str
    body: bytes
    qos: int
    is_retained: bool
    properties: MessageProperties


@dataclass(frozen=True, slots=True)
class Login:
    """All settings of a connection. Times are in seconds; `session_expiry_s` None: a clean session."""

    address: Address
    version: Version = Version.V5
    client_id: str = ""
    session_expiry_s: int | None = None
    keep_alive_s: int = 60
    user: str | None = None
    password: bytes | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    will: Will | None = None
    answer_timeout_s: float = 10.0


def read_address(url: str) -> Address:
    """`HOST`, `HOST:PORT`, `mqtt://…`, `mqtts://…`, `ws://…/path`, `wss://…/path`."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"mqtt://{url}")
        port = parts.port
    except ValueError as error:
        raise bad("--url", str(error)) from None
    scheme, path = parts.scheme, parts.path
    is_websocket = scheme in ("ws", "wss")
    is_plain = is_websocket or not (path.strip("/") or parts.query)
    if scheme not in _PORTS or not parts.hostname or port == 0 or parts.fragment or not is_plain:
        raise bad(
            "--url", f"{url!r} is not HOST, HOST:PORT, or an mqtt://, mqtts://, ws://, wss:// URL"
        )
    if parts.username is not None or parts.password is not None:
        raise bad("--url", f"do not put a login into the URL; use --user and {PASSWORD_VARIABLE}")
    if is_websocket:
        path = path if path.strip("/") else _WEBSOCKET_PATH
        path += f"?{parts.query}" if parts.query else ""
    else:
        path = ""
    return Address(
        parts.hostname,
        _PORTS[scheme] if port is None else port,
        is_tls=scheme in ("mqtts", "wss"),
        path=path,
    )


def read_tls(
    address: Address, cafile: Path | None, cert: Path | None, key: Path | None
) -> ssl.SSLContext | None:
    """The context of a TLS address; the broker's certificate must be valid and for its host."""
    if not address.is_tls:
        for option, file in (("--cafile", cafile), ("--cert", cert), ("--key", key)):
            if file is not None:
                raise bad(option, "it needs TLS: an mqtts:// or wss:// URL")
        return None
    if key is not None and cert is None:
        raise bad("--key", "it needs --cert")
    try:
        context = ssl.create_default_context(cafile=None if cafile is None else str(cafile))
    except OSError as error:
        raise bad("--cafile", f"{cafile}: {error.strerror or error}") from None
    context.sslsocket_class = _TidySocket
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except OSError as error:
            raise bad("--cert", f"{cert}: {error.strerror or error}") from None
    return context


class _TidySocket(ssl.SSLSocket):
    """Closes itself when the handshake fails: paho leaves it open then."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (OSError, ValueError):
            self.close()
            raise


def read_seconds(text: str, option: str, *, least: int = 0, most: int = SECONDS_MAX) -> int:
    """A time in whole seconds, as the protocol carries it; `never` is the longest there is."""
    if text == "never" and most == SECONDS_MAX:
        return SECONDS_MAX
    seconds = read_time(text, option)
    if seconds != math.floor(seconds) or not least <= seconds <= most:
        raise bad(option, f"{text!r} is not a whole number of seconds from {least} to {most}")
    return int(seconds)


def read_topic(topic: str, option: str) -> str:
    """A topic name to publish to."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise bad(option, f"{topic!r} is not a topic to publish to: it is empty or has a wildcard")
    if len(topic.encode()) > 65_535:
        raise bad(option, "a topic must not be longer than 65535 bytes")
    return topic


# --------------------------------------------------------------------------------------- printing


def show(message: Any, output: Output) -> None:
    """Print one received paho message on stdout, and flush: the next step acknowledges it."""
    body = bytes(message.payload)
    out = sys.stdout
    if output is Output.JSON:
        out.write(printable_json(json.dumps(describe(message), ensure_ascii=False)) + "\n")
        out.flush()
        return
    write_body(body, f"{message.topic} ".encode() if output is Output.VERBOSE else b"")


def describe(message: Any) -> dict[str, Any]:
    """The message for machines. Bytes that are not UTF-8 are given in base64 under a separate name."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "qos": message.qos,
        "retain": bool(message.retain),
        "dup": bool(message.dup),
    }
    shown |= text_of("body", bytes(message.payload))
    properties = message.properties
    if properties is not None and not properties.isEmpty():
        shown["properties"] = _describe_properties(properties)
    return shown


_PLAIN_PROPERTIES: Final = (
    ("PayloadFormatIndicator", "payload_format"),
    ("MessageExpiryInterval", "expiry_seconds"),
    ("ContentType", "content_type"),
    ("ResponseTopic", "response_topic"),
    ("SubscriptionIdentifier", "subscription_ids"),
)


def _describe_properties(properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for theirs, ours in _PLAIN_PROPERTIES:
        value = getattr(properties, theirs, None)
        if value is not None:
            found[ours] = value
    correlation = getattr(properties, "CorrelationData", None)
    if correlation is not None:
        found |= text_of("correlation_data", bytes(correlation))
    pairs: list[tuple[str, str]] = getattr(properties, "UserProperty", [])
    if pairs:
        found["user"] = [list(pair) for pair in pairs]
    return found
