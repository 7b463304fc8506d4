"""A rule over MQTT, with QoS 1 both ways.

With QoS 2 paho-mqtt holds an incoming message only in memory once it has answered PUBREC, so a kill would lose it.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any, Final, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tidegate_bridge import _protocol as protocol
from tidegate_bridge._names import is_queue_like
from tidegate_bridge.remote.hops import More
from tidegate_bridge.remote.lane import Broken, Confirmed, Lane, LaneError, Subscribed
from tidegate_bridge.remote.link import Link
from tidegate_bridge.remote.mqtt_messages import arriving, leaving

_QOS: Final = 1
_KEEP_ALIVE_S: Final = 60
_NEVER_EXPIRES: Final = 0xFFFF_FFFF
#: SUBACK codes from here on are refusals.
_REFUSALS: Final = 0x80


class MqttLane(Lane):
    """See Lane."""

    def __init__(self, start: protocol.Start, number: int, link: Link) -> None:
        super().__init__(start, number, link)
        self._client: paho.Client | None = None
        self._heard: _Heard | None = None
        self._sent: dict[int, int] = {}

    def connect(self) -> None:
        start, is_5 = self.start, self.start.is_mqtt_5
        where = f"{start.scheme}://{start.host}:{start.port}"
        heard = self._heard = _Heard(self)
        self._sent.clear()
        client = self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            # No session for outgoing rules: the source resends whatever is not confirmed.
            clean_session=None if is_5 else not self.is_in,
            protocol=MQTTProtocolVersion.MQTTv5 if is_5 else MQTTProtocolVersion.MQTTv311,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        heard.listen(client)
        client.connect_timeout = start.connect_timeout
        client.max_inflight_messages_set(min(start.window, 65_535))
        client.max_queued_messages_set(0)
        if start.user:
            client.username_pw_set(start.user, start.password or None)
        if start.scheme == "mqtts":
            context = ssl.create_default_context(cafile=start.ca or None)
            if start.certificate:
                context.load_cert_chain(start.certificate, start.key)
            cast("Any", client).tls_set_context(context)
        properties = Properties(PacketTypes.CONNECT) if is_5 else None
        if properties is not None:
            properties.ReceiveMaximum = min(start.window, 65_535)
            properties.SessionExpiryInterval = _NEVER_EXPIRES if self.is_in else 0
        try:
            client.connect(
                start.host,
                start.port,
                _KEEP_ALIVE_S,
                clean_start=not self.is_in if is_5 else paho.MQTT_CLEAN_START_FIRST_ONLY,
                properties=properties,
            )
        except ssl.SSLError as error:
            raise LaneError(
                f"{where}: TLS fails: {error}",
                "is its certificate from an authority of `tls_ca`, and for this name?",
            ) from None
        except OSError as error:
            raise LaneError(
                f"{where} cannot be reached: {error.strerror or error}",
                "start it, or correct `remote`",
            ) from None
        client.loop_start()
        heard.answered.wait(start.connect_timeout)
        if heard.refused:
            raise LaneError(
                f"{where} refuses the connection: {heard.refused}",
                "correct `user`, `password_file` or `mqtt_version`, or what that user may do there",
            )
        if not heard.is_connected:
            raise LaneError(f"{where} does not answer CONNECT", "is it MQTT that it speaks there?")

    def consume(self) -> None:
        assert self._client is not None
        assert self._heard is not None
        if self._heard.session_present and not self.start.is_mqtt_5:
            # The session has the subscription; subscribing again would repeat retained messages.
            self.inbox.put(Subscribed(self.epoch))
            return
        if self.start.is_mqtt_5:
            options = SubscribeOptions(
                _QOS,
                noLocal=self.rule.is_echoed,
                retainAsPublished=True,
                retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
            )
            self._client.subscribe(self.rule.remote, options=options)
        else:
            self._client.subscribe(self.rule.remote, _QOS)

    def acknowledge(self, number: int) -> None:
        assert self._client is not None
        assert self._heard is not None
        found = self._heard.pending.pop(number, None)
        if found is not None:
            packet_id, qos, size = found
            if qos:
                self._client.ack(packet_id, qos)
            self.budget.give_back(size)

    def send(self, take: protocol.Take, more: More) -> None:
        assert self._client is not None
        message = take.message
        properties: Properties | None = None
        if self.start.is_mqtt_5:
            properties = leaving(message, more, f"{self.start.store}-{take.number}")
            if properties is None:  # it has expired
                self._drop(take.number)
                return
        info = self._client.publish(
            take.target or self.names.leaving(message.destination),
            message.body,
            _QOS,
            message.retain,
            properties,
        )
        if info.rc not in (paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_NO_CONN):
            raise LaneError(f"sending fails: {paho.error_string(info.rc)}", "")
        self._sent[info.mid] = take.number

    def sent(self, key: int) -> int | None:
        return self._sent.pop(key, None)

    @property
    def has_unconfirmed(self) -> bool:
        return bool(self._sent)

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            if self._heard is not None:
                self._heard.is_over = True
            client.disconnect()
            client.loop_stop()


class _Heard:
    """Callbacks of one connection, in paho's thread; passed on as events and messages."""

    def __init__(self, lane: MqttLane) -> None:
        self._lane = lane
        self._epoch = lane.epoch
        self._numbers = 0
        self.is_over = False
        self.answered = threading.Event()
        self.is_connected = False
        self.session_present = False
        self.refused = ""
        self.pending: dict[int, tuple[int, int, int]] = {}

    def listen(self, client: paho.Client) -> None:
        """To *client*."""
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._message
        client.on_publish = self._published
        client.on_subscribe = self._subscribed

    def _connected(
        self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        if reason.is_failure:
            self.refused = str(reason)
        else:
            # Not in the lane's thread: queued messages of the session follow right after CONNACK.
            self._lane.tell_ready(f"MQTT {'5.0' if self._lane.start.is_mqtt_5 else '3.1.1'}")
            self.is_connected = True
            self.session_present = bool(flags.session_present)
        self.answered.set()

    def _disconnected(
        self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self.answered.set()
        self._broken(
            f"the other broker ended the connection: {reason}", "it is tried again; see its log"
        )

    def _subscribed(
        self, client: paho.Client, data: Any, mid: int, reasons: Any, properties: Any
    ) -> None:
        refused = [str(reason) for reason in reasons if reason.value >= _REFUSALS]
        if refused:
            self._broken(
                f"the other broker refuses to subscribe to {self._lane.rule.remote!r}: {refused[0]}",
                "give the bridge's user the right to, there",
            )
        else:
            self._lane.inbox.put(Subscribed(self._epoch))

    def _published(
        self, client: paho.Client, data: Any, mid: int, reason: Any, properties: Any
    ) -> None:
        if reason.is_failure:
            self._broken(
                f"the other broker refuses a message: {reason}",
                "give the bridge's user the right to publish there, or make room",
                mid,
            )
        else:
            self._lane.inbox.put(Confirmed(self._epoch, mid))

    def _message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        if self.is_over:
            return
        try:
            self._bring(message)
        except LaneError as error:
            self._broken(error.problem, error.remedy)
        except OSError:
            self.is_over = True  # the gateway is gone, so this process ends soon

    def _bring(self, found: paho.MQTTMessage) -> None:
        lane, body = self._lane, bytes(found.payload)
        if len(body) > lane.start.message_limit:
            raise lane.too_large(len(body))
        here = lane.names.arriving(found.topic)
        if here is None:
            raise LaneError(
                f"a message of {found.topic!r} came, which {lane.rule.remote!r} does not cover",
                f"the session {lane.client_id!r} there is of an older rule: remove it there, or rename the rule",
            )
        if not lane.budget.take(len(body)):
            return
        self._numbers += 1
        number = self._numbers
        if number == 1:  # the confirmation may queue behind messages waiting for room
            lane.inbox.put(Subscribed(self._epoch, is_certain=False))
        self.pending[number] = found.mid, found.qos, len(body)
        message = arriving(found, body, here)
        more = lane.hops.next(message.headers)
        if more is None and is_queue_like(lane.rule.remote):
            raise lane.too_many_hops()
        if more is None or lane.hops.is_copy_of_ours(message.headers):
            lane.inbox.put(protocol.Done(lane.number, self._epoch, [number], 1))
            return
        message = arriving(found, body, here, more)
        lane.link.send(protocol.Bring(lane.number, self._epoch, number, "", message))

    def _broken(self, problem: str, remedy: str, key: int | None = None) -> None:
        self.is_over = True
        self._lane.inbox.put(Broken(self._epoch, problem, remedy, key))
