"""What `tidegate mqtt` says of brokers that refuse, break off, or talk nonsense.

Each broker here is a script of bytes: it reads one packet or more, then says the next answer.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from free_ports import free_port

from tidegate.spi import ClientError
from tidegate_protocols.commands.mqtt_link import SilentError, Wanted, connected
from tidegate_protocols.commands.mqtt_values import Address, Login, MessageProperties, Version, Will

ACCEPTED = bytes.fromhex(
    "20 03"  # CONNACK, 3 bytes follow
    "00 00 00"  # no session, success, no properties
)
ACCEPTED_311 = bytes.fromhex("20 02 00 00")


class Script:
    """A broker that answers each thing it reads with the next of *answers*; then it listens."""

    def __init__(self, *answers: bytes, ends: bool = False) -> None:
        self.heard = bytearray()
        self._ends = ends
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._listener, self._listener.accept()[0] as link, contextlib.suppress(OSError):
            link.settimeout(60)
            for answer in self._answers:
                self.heard += link.recv(65536)
                link.sendall(answer)
            while not self._ends and (data := link.recv(65536)):
                self.heard += data

    def done(self) -> bytes:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return bytes(self.heard)


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*answers: bytes, ends: bool = False) -> Script:
        made.append(Script(*answers, ends=ends))
        return made[-1]

    yield make
    for broker in made:
        broker.done()


def login(port: int, **more: Any) -> Login:
    return Login(Address("127.0.0.1", port), **more)


def test_a_refused_connect_names_the_reason_and_what_the_broker_adds(script) -> None:
    broker = script(
        bytes.fromhex(
            "20 12"  # CONNACK
            "00 9c"  # Use another server
            "0f"  # 15 bytes of properties
            "1f 0005 627573797a"  # Reason String: busyz
            "1c 0004 622e6161"  # Server Reference: b.aa
        ),
        ends=True,
    )
    with pytest.raises(ClientError) as refused, connected(login(broker.port)):
        pass
    assert str(refused.value) == (
        f"127.0.0.1:{broker.port} refused the connection: Use another server; busyz; "
        "its server is b.aa"
    )


@pytest.mark.parametrize(
    ("code", "name"),
    [(3, "Server unavailable"), (4, "Bad user name or password"), (5, "Not authorized")],
)
def test_older_return_codes_have_names_too(script, code, name) -> None:
    broker = script(bytes((0x20, 2, 0, code)), ends=True)
    with (
        pytest.raises(ClientError, match=f"refused the connection: {name}"),
        connected(login(broker.port, version=Version.V311)),
    ):
        pass


def test_nobody_listens() -> None:
    with (
        pytest.raises(ClientError, match=r"cannot reach 127\.0\.0\.1:\d+: .*refused"),
        connected(login(free_port())),
    ):
        pass


def test_a_broker_that_says_nothing_is_given_up(script) -> None:
    broker = script()
    with (
        pytest.raises(
            SilentError, match=r"no answer to CONNECT from 127\.0\.0\.1:\d+ within 0\.3 s"
        ),
        connected(login(broker.port, answer_timeout_s=0.3)),
    ):
        pass


def test_a_broker_that_closes_at_once(script) -> None:
    broker = script(b"", ends=True)
    with pytest.raises(ClientError, match="closed the connection"), connected(login(broker.port)):
        pass


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad\r\n\r\n", b"\x20\x03\x00\x00\xff", b"\x00\x00"]
)
def test_bytes_that_are_no_mqtt_end_the_command(script, answer) -> None:
    broker = script(answer, ends=True)
    with (
        pytest.raises(ClientError, match=r"closed the connection|does not speak MQTT"),
        connected(login(broker.port, answer_timeout_s=60.0)),
    ):
        pass


def test_a_disconnect_from_the_broker_is_named(script) -> None:
    broker = script(
        ACCEPTED + bytes.fromhex("e0 01 8b"),  # DISCONNECT, Server shutting down
        ends=True,
    )
    with (
        connected(login(broker.port)) as link,
        pytest.raises(ClientError, match="closed the connection: Server shutting down"),
    ):
        link.next_message(60.0)


def test_a_refused_subscription_is_named(script) -> None:
    broker = script(
        ACCEPTED,
        bytes.fromhex(
            "90 05"  # SUBACK
            "0001 00"  # packet id 1, no properties
            "01 87"  # QoS 1, Not authorized
        ),
    )
    with (
        connected(login(broker.port)) as link,
        pytest.raises(ClientError, match="refused the subscription to b/#: Not authorized"),
    ):
        link.subscribe(["a", "b/#"], Wanted())


def test_an_illegal_filter_is_refused_before_it_is_sent(script) -> None:
    broker = script(ACCEPTED)
    with (
        connected(login(broker.port)) as link,
        pytest.raises(ClientError, match="a/#/b: not a valid topic filter"),
    ):
        link.subscribe(["a/#/b"], Wanted())


def test_a_refused_message_is_named(script) -> None:
    broker = script(
        ACCEPTED,
        bytes.fromhex(
            "40 0a"  # PUBACK
            "0001 97"  # packet id 1, Quota exceeded
            "06 1f 0003 6f6666"  # Reason String: off
        ),
    )
    with connected(login(broker.port)) as link:
        mid = link.publish("a", b"x", 1, retain=False, properties=None)
        with pytest.raises(ClientError, match="refused the message: Quota exceeded; off"):
            link.wait_published(mid)


def test_a_refused_qos_2_message_is_a_failure_though_paho_hides_the_reason(script) -> None:
    broker = script(
        ACCEPTED,
        bytes.fromhex("50 03 0001 87"),  # PUBREC, Not authorized
        bytes.fromhex("70 03 0001 92"),  # PUBCOMP, Packet Identifier not found
    )
    with connected(login(broker.port)) as link:
        mid = link.publish("a", b"x", 2, retain=False, properties=None)
        with pytest.raises(ClientError, match="refused the message; with --qos 1"):
            link.wait_published(mid)


def test_a_message_that_is_never_confirmed_is_given_up(script) -> None:
    broker = script(ACCEPTED)
    with connected(login(broker.port, answer_timeout_s=3.0)) as link:  # CONNACK's time, too
        mid = link.publish("a", b"x", 1, retain=False, properties=None)
        with pytest.raises(
            SilentError, match=r"no confirmation of message 1 from 127\.0\.0\.1:\d+ within"
        ):
            link.wait_published(mid)


def test_publishing_on_a_lost_connection_says_that_it_is_lost(script) -> None:
    broker = script(ACCEPTED, ends=True)
    with connected(login(broker.port)) as link:
        broker.done()
        with pytest.raises(ClientError, match="closed the connection"):
            link.next_message(60.0)
        with pytest.raises(ClientError):
            link.wait_published(link.publish("a", b"x", 1, retain=False, properties=None))


def test_a_message_is_acknowledged_by_the_caller_alone_and_may_come_before_suback(script) -> None:
    broker = script(
        ACCEPTED_311,
        bytes.fromhex(
            "32 06 0001 61 0009 78"  # PUBLISH QoS 1, topic a, packet id 9, body x
            "90 03 0001 01"  # SUBACK
        ),
    )
    with connected(login(broker.port, version=Version.V311)) as link:
        link.subscribe(["a"], Wanted(qos=1))
        message = link.next_message(60.0)
        assert message is not None
        assert (message.topic, message.payload) == ("a", b"x")
        assert bytes.fromhex("40020009") not in broker.heard
        link.acknowledge(message)
    assert bytes.fromhex("40020009") in broker.done(), "PUBACK for packet id 9"


def test_no_message_in_time_is_none(script) -> None:
    broker = script(ACCEPTED)
    with connected(login(broker.port)) as link:
        assert link.next_message(0.1) is None


def test_connect_carries_session_will_and_login(script) -> None:
    broker = script(ACCEPTED)
    will = Will("w", b"bye", 1, True, MessageProperties(delay_s=5))
    wanted = login(
        broker.port,
        client_id="me",
        session_expiry_s=60,
        keep_alive_s=7,
        user="u",
        password=b"p",
        will=will,
    )
    with connected(wanted):
        pass
    heard = broker.done()
    assert heard[2:10] == bytes.fromhex(
        "00044d515454 05"  # MQTT, version 5
        "ec"  # user, password, will retain, will QoS 1, will, no clean start
    )
    assert heard[10:12] == bytes.fromhex("0007"), "the keep-alive"
    assert heard[12:18] == bytes.fromhex("05 11 0000003c"), "the session expiry"
    assert bytes.fromhex("05 18 00000005 0001 77 0003 627965") in heard, "the will and its delay"
    assert heard.endswith(bytes.fromhex("0001 75 0001 70e0 00")), "login, then DISCONNECT"


def test_a_publish_carries_its_properties(script) -> None:
    broker = script(ACCEPTED)
    wanted = MessageProperties("t", "r", "c", 9, (("k", "v"),), is_text=True)
    with connected(login(broker.port)) as link:
        mid = link.publish("a", b"x", 0, retain=True, properties=link.properties(wanted))
        assert link.wait_published(mid) == "Success"
    heard = broker.done()
    assert (
        bytes.fromhex(
            "31 1f 0001 61"  # PUBLISH, RETAIN, topic a
            "1a"  # 26 bytes of properties
            "01 01"  # Payload Format Indicator: text
            "02 00000009"  # Message Expiry Interval
            "03 0001 74"  # Content Type
            "08 0001 72"  # Response Topic
            "09 0001 63"  # Correlation Data
            "26 0001 6b 0001 76"  # User Property
            "78"
        )
        in heard
    )


@pytest.mark.parametrize(("handling", "octet"), [(0, "0d"), (1, "1d"), (2, "2d")])
def test_a_subscribe_carries_its_options(script, handling, octet) -> None:
    broker = script(ACCEPTED, bytes.fromhex("90 04 0001 00 01"))
    with connected(login(broker.port)) as link:
        link.subscribe(["a"], Wanted(1, True, True, handling))
    assert bytes.fromhex("0001 61" + octet) in broker.done()


def test_without_paho_the_line_says_what_to_install(monkeypatch) -> None:
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("paho"):
            raise ModuleNotFoundError("No module named 'paho'", name="paho")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with (
        pytest.raises(ClientError, match=r"pip install 'tidegate-protocols\[clients\]'"),
        connected(login(1)),
    ):
        pass
