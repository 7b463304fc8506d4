"""What `tidegate mqtt` reads from its options and prints of a message; no connection here.

Every refusal is a `typer.BadParameter` that names the option.
"""

from __future__ import annotations

import base64
import json
import math
import os
import ssl
import sys
import urllib.parse
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import typer

from tidegate.spi import parse_duration

#: Where the password comes from; never from an argument, which every user of the machine can read.
PASSWORD_VARIABLE: Final = "TIDEGATE_MQTT_PASSWORD"
DEFAULT_URL: Final = "mqtt://127.0.0.1:1883"
#: The largest Four Byte Integer; as a session expiry interval it means "never" (5.0, 3.1.2.11.2).
SECONDS_MAX: Final = 0xFFFF_FFFF
KEEP_ALIVE_MAX: Final = 65_535
#: 30 days, which every wait of the platform can take.
WAIT_MAX: Final = 30 * 86_400
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
    """All of a connection. Times are in seconds; `session_expiry_s` None: a clean session."""

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


def bad(option: str, text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint=f"'{option}'")


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
        raise bad("--url", f"write no login into the URL; use --user and {PASSWORD_VARIABLE}")
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


def read_password(user: str | None, file: Path | None) -> bytes | None:
    """From *file* without its last line end, from the environment, or asked for."""
    if user is None:
        if file is not None:
            raise bad("--password-file", "it needs --user")
        return None
    if file is not None:
        return read_file(file, "--password-file").removesuffix(b"\n").removesuffix(b"\r")
    known = os.environ.get(PASSWORD_VARIABLE)
    if known is not None:
        return known.encode()
    if not sys.stdin.isatty():
        raise bad(
            "--user",
            f"set {PASSWORD_VARIABLE} or give --password-file: there is no terminal to ask for "
            "the password",
        )
    return str(typer.prompt("Password", hide_input=True, err=True)).encode()


def read_file(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise bad(option, f"{file}: {error.strerror or error}") from None


def read_wait(text: str, option: str) -> float:
    """A time above 0 that we wait ourselves."""
    seconds = _read_time(text, option)
    if not 0 < seconds <= WAIT_MAX:
        raise bad(option, "it must be above 0 and at most 30d")
    return seconds


def read_seconds(text: str, option: str, *, least: int = 0, most: int = SECONDS_MAX) -> int:
    """A time in whole seconds, as the protocol carries it; `never` is the longest there is."""
    if text == "never" and most == SECONDS_MAX:
        return SECONDS_MAX
    seconds = _read_time(text, option)
    if seconds != math.floor(seconds) or not least <= seconds <= most:
        raise bad(option, f"{text!r} is not {least} to {most} whole seconds")
    return int(seconds)


def _read_time(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise bad(option, str(error)) from None


def read_pairs(lines: list[str] | None, option: str) -> tuple[tuple[str, str], ...]:
    """User properties: a name may come more than once, and the order stays (5.0, 3.3.2.3.7)."""
    pairs: list[tuple[str, str]] = []
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise bad(option, f"{line!r} is not NAME:VALUE")
        pairs.append((name, value))
    return tuple(pairs)


def read_topic(topic: str, option: str) -> str:
    """A topic name to publish to."""
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise bad(option, f"{topic!r} is no topic to publish to: it is empty or has a wildcard")
    if len(topic.encode()) > 65_535:
        raise bad(option, "a topic has at most 65535 bytes")
    return topic


# --------------------------------------------------------------------------------------- printing


def show(message: Any, output: Output) -> None:
    """Print one received paho message on stdout, and flush: the next step acknowledges it."""
    body = bytes(message.payload)
    out = sys.stdout
    if output is Output.JSON:
        out.write(json.dumps(describe(message), ensure_ascii=False) + "\n")
        out.flush()
        return
    out.flush()
    head = f"{message.topic} ".encode() if output is Output.VERBOSE else b""
    out.buffer.write(head + body + b"\n")
    out.buffer.flush()


def describe(message: Any) -> dict[str, Any]:
    """The message for machines. Bytes that are no UTF-8 come in base64 under a name of their own."""
    shown: dict[str, Any] = {
        "topic": message.topic,
        "qos": message.qos,
        "retain": bool(message.retain),
        "dup": bool(message.dup),
    }
    shown |= _text("body", bytes(message.payload))
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
        found |= _text("correlation_data", bytes(correlation))
    pairs: list[tuple[str, str]] = getattr(properties, "UserProperty", [])
    if pairs:
        found["user"] = [list(pair) for pair in pairs]
    return found


def _text(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
