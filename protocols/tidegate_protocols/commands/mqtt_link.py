"""One MQTT connection of `tidegate mqtt`, on paho-mqtt.

paho-mqtt is an optional dependency and imported only when a command runs. It reads in a thread of
its own; everything it hears goes through one bounded queue, and a full queue holds the broker back.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, final

from tidegate.spi import ClientError
from tidegate_protocols.commands.mqtt_values import (
    Login,
    MessageProperties,
    Version,
    Will,
)

#: Events that may wait; then paho's thread waits, and TCP holds the broker back.
_WAITING_MAX: Final = 1000
#: Seconds after which a full queue is checked again.
_FULL_PAUSE_S: Final = 0.1
#: Seconds that leaving may take before the socket is cut.
_LEAVE_S: Final = 1.0
#: Reason codes from this one on are failures (5.0, section 2.4).
_FAILURE: Final = 0x80
_PACKET_ID_NOT_FOUND: Final = 0x92


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to subscribe. Attributes: retain_handling: 0 always, 1 when new, 2 never."""

    qos: int = 1
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


class SilentError(ClientError):
    """Nothing came in time."""


@contextlib.contextmanager
def connected(login: Login) -> Generator[Link]:
    """A connection that the broker has accepted. Raises: ClientError."""
    link = Link(_load(), login)
    try:
        link.connect()
        yield link
    finally:
        link.close()


def _load() -> Any:
    """paho's client module. Raises: ClientError that says what to install."""
    try:
        return importlib.import_module("paho.mqtt.client")
    except ImportError as error:
        raise ClientError(
            "`tidegate mqtt` needs paho-mqtt: pip install 'tidegate-protocols[clients]'"
        ) from error


@final
class Link:
    """All waits end after the login's `answer_timeout_s` with a ClientError.

    Messages are acknowledged only by `acknowledge`, which the caller calls after using them.
    """

    def __init__(self, paho: Any, login: Login) -> None:
        self._paho = paho
        self._login = login
        self._is_5 = login.version is Version.V5
        self._heard: queue.Queue[tuple[str, Any]] = queue.Queue(_WAITING_MAX)
        self._messages: deque[Any] = deque()
        self._published: dict[int, tuple[Any, Any]] = {}
        self._is_closed = False
        self._loss: ClientError | None = None
        self._lost = threading.Event()
        self.client: Any = self._make_client()

    def _make_client(self) -> Any:
        paho, login = self._paho, self._login
        named: dict[str, Any] = {}
        client_id = login.client_id
        if not self._is_5:
            named["clean_session"] = login.session_expiry_s is None
            # 5.0 brokers assign one; older ones may refuse an empty one, and paho hides why.
            client_id = client_id or f"tidegate-{uuid.uuid4().hex[:12]}"
        versions = {Version.V31: paho.MQTTv31, Version.V311: paho.MQTTv311, Version.V5: paho.MQTTv5}
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=versions[login.version],
            transport="websockets" if login.address.path else "tcp",
            reconnect_on_failure=False,
            manual_ack=True,
            **named,
        )
        client.connect_timeout = login.answer_timeout_s
        if login.address.path:
            client.ws_set_options(path=login.address.path)
        if login.tls is not None:
            client.tls_set_context(login.tls)
        if login.user is not None:
            client.username_pw_set(login.user, login.password)
        if login.will is not None:
            self._set_will(client, login.will)
        # What each callback passes on, without the client and its user data.
        client.on_connect = self._hears("CONNACK")  # flags, code, properties
        client.on_subscribe = self._hears("SUBACK")  # packet id, codes, properties
        client.on_publish = self._hears("DONE")  # packet id, code, properties
        client.on_message = self._hears("MESSAGE")  # message
        client.on_disconnect = self._on_disconnect
        # For bytes that are not MQTT, paho raises in its own thread, where nobody would notice.
        loop_forever = client.loop_forever

        def loop(*arguments: Any, **named: Any) -> Any:
            try:
                return loop_forever(*arguments, **named)
            except Exception as error:
                return self._on_end(error)

        client.loop_forever = loop
        return client

    def _set_will(self, client: Any, will: Will) -> None:
        properties = self.properties(will.properties, "WILLMESSAGE") if self._is_5 else None
        client.will_set(will.topic, will.body, will.qos, will.is_retained, properties)

    # ------------------------------------------------------------------------- what a caller does

    def connect(self) -> None:
        """Connect and wait for CONNACK. Raises: ClientError with the reason's name."""
        login = self._login
        named: dict[str, Any] = {}
        if self._is_5:
            properties = self._properties("CONNECT")
            properties.SessionExpiryInterval = login.session_expiry_s or 0
            named = {"clean_start": login.session_expiry_s is None, "properties": properties}
        try:
            self.client.connect(login.address.host, login.address.port, login.keep_alive_s, **named)
        except OSError as error:
            raise ClientError(f"cannot reach {login.address}{_because(error)}") from error
        self.client.loop_start()
        _, code, more = self._wait("CONNACK", "answer to CONNECT")
        if code.is_failure:
            raise self._refused("the connection", code, more)

    def subscribe(self, filters: list[str], wanted: Wanted) -> None:
        """Subscribe to all *filters* and wait for SUBACK. Raises: ClientError, even if only one is refused."""
        if self._is_5:
            options = self._paho.SubscribeOptions(
                wanted.qos, wanted.no_local, wanted.retain_as_published, wanted.retain_handling
            )
            arguments: Any = [(name, options) for name in filters]
        else:
            arguments = [(name, wanted.qos) for name in filters]
        try:
            self.client.subscribe(arguments)
        except ValueError as error:
            raise ClientError(
                f"{', '.join(filters)}: not a valid topic filter{_because(error)}"
            ) from error
        _, codes, more = self._wait("SUBACK", "answer to SUBSCRIBE")
        for name, code in zip(filters, codes, strict=False):
            if code.is_failure:
                raise self._refused(f"the subscription to {name}", code, more)

    def publish(
        self, topic: str, body: bytes, qos: int, *, retain: bool, properties: Any | None
    ) -> int:
        """Begin to publish; returns the packet id, to wait for with `wait_published`."""
        try:
            info = self.client.publish(topic, body, qos, retain, properties)
        except ValueError as error:
            raise ClientError(f"{topic}: cannot be published{_because(error)}") from error
        if info.rc == self._paho.MQTT_ERR_NO_CONN:
            self._wait("", "answer")  # the reason is on its way to us
        return int(info.mid)

    def wait_published(self, mid: int) -> str:
        """Wait until the broker has taken *mid* (QoS 0: until it was written). Returns its reason's name."""
        deadline = time.monotonic() + self._login.answer_timeout_s
        while mid not in self._published:
            number, code, more = self._wait("DONE", f"confirmation of message {mid}", deadline)
            self._published[number] = (code, more)
        code, more = self._published.pop(mid)
        if code.value >= _FAILURE:
            if code.value == _PACKET_ID_NOT_FOUND:
                # The PUBREC said why, but paho ignores it; the PUBCOMP says only this.
                raise ClientError(
                    f"{self._login.address} refused the message; with --qos 1 it can give a reason"
                )
            raise self._refused("the message", code, more)
        return str(code)

    def next_message(self, seconds: float | None) -> Any | None:
        """The next message; None when none comes within *seconds* (None: wait for ever)."""
        if self._messages:
            return self._messages.popleft()
        try:
            deadline = None if seconds is None else time.monotonic() + seconds
            return self._wait("MESSAGE", "message", deadline, is_endless=True)[0]
        except SilentError:
            return None

    def acknowledge(self, message: Any) -> None:
        """Tell the broker that it may forget *message*; does nothing for QoS 0."""
        self.client.ack(message.mid, message.qos)

    def properties(self, wanted: MessageProperties, packet: str = "PUBLISH") -> Any:
        """paho's properties of a message or will."""
        found = self._properties(packet)
        for name, value in (
            ("ContentType", wanted.content_type),
            ("ResponseTopic", wanted.response_topic),
            (
                "CorrelationData",
                None if wanted.correlation_data is None else wanted.correlation_data.encode(),
            ),
            ("MessageExpiryInterval", wanted.expiry_s),
            ("PayloadFormatIndicator", 1 if wanted.is_text else None),
            ("WillDelayInterval", wanted.delay_s),
        ):
            if value is not None:
                setattr(found, name, value)
        if wanted.user:
            found.UserProperty = list(wanted.user)
        return found

    def close(self) -> None:
        """Leave with DISCONNECT if still possible, and close the socket."""
        self._is_closed = True  # paho's thread may be waiting for room
        if self.client.socket() is None:
            self.client.loop_stop()
            return
        self.client.disconnect()
        if not self._lost.wait(_LEAVE_S):
            self._cut()
        self.client.loop_stop()

    # ---------------------------------------------------------------------------------- inside

    def _cut(self) -> None:
        """End the connection under paho's thread, which then ends too."""
        link = self.client.socket()
        with contextlib.suppress(OSError, ValueError):
            if link is not None:
                # A WebSocket or TLS object has no shutdown of its own that is safe here.
                with socket.fromfd(link.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
                    same.shutdown(socket.SHUT_RDWR)

    def _hears(self, kind: str) -> Callable[..., None]:
        def heard(_client: Any, _data: Any, *values: Any) -> None:
            self._put(kind, values)

        return heard

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, code: Any, more: Any) -> None:
        self._on_end((code, more) if flags.is_disconnect_packet_from_server else None)

    def _on_end(self, reason: Any) -> None:
        self._lost.set()
        self._put("LOST", reason)

    def _put(self, kind: str, value: Any) -> None:
        while not self._is_closed:
            with contextlib.suppress(queue.Full):
                self._heard.put((kind, value), timeout=_FULL_PAUSE_S)
                return

    def _wait(
        self, wanted: str, what: str, deadline: float | None = None, *, is_endless: bool = False
    ) -> Any:
        if deadline is None and not is_endless:
            deadline = time.monotonic() + self._login.answer_timeout_s
        while True:
            if self._loss is not None:
                raise self._loss  # nothing comes after it
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                kind, value = self._heard.get(timeout=left)
            except queue.Empty:
                seconds = self._login.answer_timeout_s
                raise SilentError(
                    f"no {what} from {self._login.address} within {seconds:g} s"
                ) from None
            if kind == wanted:
                return value
            if kind == "LOST":
                self._loss = self._lost_error(value)
                raise self._loss
            if kind == "MESSAGE":
                self._messages.append(value[0])  # a session's messages may come before its SUBACK
            elif kind == "DONE":
                self._published[value[0]] = value[1:]

    def _lost_error(self, reason: Any) -> ClientError:
        address = self._login.address
        if isinstance(reason, Exception):
            return ClientError(f"{address} does not speak MQTT{_because(reason)}")
        if reason is None:
            return ClientError(f"{address} closed the connection")
        return ClientError(f"{address} closed the connection: {_words(*reason)}")

    def _refused(self, what: str, code: Any, more: Any) -> ClientError:
        return ClientError(f"{self._login.address} refused {what}: {_words(code, more)}")

    def _properties(self, packet: str) -> Any:
        types = importlib.import_module("paho.mqtt.packettypes").PacketTypes
        return self._paho.Properties(getattr(types, packet))


def _words(code: Any, more: Any) -> str:
    """The reason code's name, and what the broker added: its reason string, another server."""
    words = [str(code)]
    for name, text in (("ReasonString", "{}"), ("ServerReference", "its server is {}")):
        value = getattr(more, name, None)
        if value:
            words.append(text.format(" ".join(str(value).split())))
    return "; ".join(words)


def _because(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f": {text}" if text else ""
