"""mosquitto_pub and mosquitto_sub against the running gateway: every version, with and without TLS.

They are in Debian's package mosquitto-clients, which `.ci/run` installs; without them the tests are
skipped with the reason, which `.ci/run` counts as a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho_recorder import Paho

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None,
        reason="mosquitto_pub and mosquitto_sub (package mosquitto-clients) are not on PATH",
    ),
]
RUN_TIMEOUT_S = 240.0
VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "tls"])


class Clients:
    """Runs the two programs against one gateway."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._running: list[subprocess.Popen[bytes]] = []

    def arguments(self, program: str, version: str, transport: str, more: tuple[str, ...]) -> Any:
        trust = ("--cafile", self._gateway.cafile) if transport == "tls" else ()
        port = str(self._gateway.ports[transport])
        return [program, "-h", "127.0.0.1", "-p", port, "-V", version, *trust, *more]

    def run(self, program: str, version: str, *more: str, transport: str = "tcp", **io: Any) -> Any:
        return subprocess.run(
            self.arguments(program, version, transport, more),
            capture_output=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
            **io,
        )

    def pub(self, version: str, *more: str, **io: Any) -> None:
        done = self.run("mosquitto_pub", version, *more, **io)
        assert (done.returncode, done.stderr) == (0, b"")

    def sub(self, version: str, *more: str, **io: Any) -> list[str]:
        done = self.run("mosquitto_sub", version, "-W", "60", *more, **io)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode().splitlines()

    def start(
        self, program: str, version: str, *more: str, stdout: int = subprocess.PIPE
    ) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(self.arguments(program, version, "tcp", more), stdout=stdout)
        self._running.append(started)
        return started

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def clients(mqtt_gateway) -> Iterator[Clients]:
    made = Clients(mqtt_gateway)
    yield made
    made.close()


@pytest.fixture
def session_of(clients) -> Callable[..., tuple[str, ...]]:
    """Subscribe in a session that is kept; returns the arguments to take it up with."""

    def make(version: str, client_id: str, topic: str, qos: int) -> tuple[str, ...]:
        kept = ("-x", "3600") if version == "mqttv5" else ()
        given = ("-i", client_id, "-c", *kept, "-t", topic, "-q", str(qos))
        assert clients.sub(version, "-E", *given) == []  # -E: leave as soon as it is subscribed
        return given

    return make


@VERSIONS
@TRANSPORTS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_published_is_heard(clients, mqtt_gateway, version, transport, qos) -> None:
    name = f"mosquitto/{version}/{transport}/{qos}"
    clients.pub(version, "-t", name, "-q", str(qos), "-m", "hello", "-r", transport=transport)
    given = ("-t", f"{name}/#", "-q", str(qos), "-C", "1", "-v")
    assert clients.sub(version, *given, transport=transport) == [f"{name} hello"]


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_persistent_session_gets_each_line_it_missed_in_order(
    clients, session_of, version, qos
) -> None:
    name = f"mosquitto/{version}/lines/{qos}"
    given = session_of(version, name, name, qos)
    lines = [str(number) for number in range(100)]
    clients.pub(version, "-t", name, "-q", str(qos), "-l", input="\n".join(lines).encode())
    assert clients.sub(version, *given, "-C", "100") == lines


@VERSIONS
def test_retained_messages(clients, version) -> None:
    name = f"mosquitto/{version}/kept"
    for more in (("a", "-m", "first"), ("a", "-m", "last"), ("b", "-m", "gone"), ("b", "-n")):
        clients.pub(version, "-r", "-q", "1", "-t", f"{name}/{more[0]}", *more[1:])
    assert clients.sub(
        version, "-t", f"{name}/+", "-F", "%r %t %p", "--retained-only", "-C", "1"
    ) == [f"1 {name}/a last"]
    assert clients.run("mosquitto_sub", version, "-t", f"{name}/+", "-R", "-W", "1").stdout == b""


@VERSIONS
def test_the_will_of_a_killed_client_is_published(clients, session_of, version) -> None:
    name = f"mosquitto/{version}/will"
    heir = session_of(version, f"heir-{version}", name, 1)
    clients.pub(version, "-t", f"{name}-ready", "-r", "-m", "yes")
    dying = clients.start(
        "mosquitto_sub", version, "-t", f"{name}-ready", "--will-topic", name,
        "--will-payload", "farewell", "--will-qos", "1",
    )  # fmt: skip
    assert dying.stdout.readline() == b"yes\n", "it is connected"
    dying.kill()
    assert clients.sub(version, *heir, "-C", "1") == ["farewell"]


def test_properties_of_5(clients, session_of) -> None:
    name = "mosquitto/properties"
    given = session_of("mqttv5", "mosquitto-properties", name, 1)
    properties = (
        ("payload-format-indicator", "1"),
        ("message-expiry-interval", "600"),
        ("content-type", "text/plain"),
        ("response-topic", "mosquitto/answers"),
        ("correlation-data", "seven"),
        ("user-property", "b", "1"),
        ("user-property", "a", "2"),
        ("user-property", "b", "3"),
    )
    more = [part for item in properties for part in ("-D", "publish", *item)]
    clients.pub("mqttv5", "-t", name, "-q", "1", "-m", "x", *more)
    shown = clients.sub("mqttv5", *given, "-C", "1", "-F", "%p|%F|%C|%R|%D|%P|%E")
    body, indicator, content, response, correlation, user, expiry = shown[0].split("|")
    assert (body, indicator, content, response) == ("x", "1", "text/plain", "mosquitto/answers")
    assert (correlation, user) == ("seven", "b:1 a:2 b:3")
    assert 590 <= int(expiry) <= 600


def test_a_subscription_identifier_comes_with_the_message(clients) -> None:
    clients.pub("mqttv5", "-t", "mosquitto/ids", "-r", "-m", "x")
    given = ("-t", "mosquitto/ids", "-D", "subscribe", "subscription-identifier", "77")
    assert clients.sub("mqttv5", *given, "-C", "1", "-F", "%p %S") == ["x 77"]


def test_request_and_response(clients, mqtt_gateway) -> None:
    """mosquitto_rr of the same package asks; paho answers."""
    with Paho(mqtt_gateway.mqtt_port, "answering", version=5) as answering:
        answering.subscribe("mosquitto/service", 1)
        asking = clients.start(
            "mosquitto_rr", "mqttv5", "-t", "mosquitto/service", "-e", "mosquitto/replies",
            "-q", "1", "-m", "question", "-W", "60",
        )  # fmt: skip
        request = answering.next()
        assert (request.payload, request.properties.ResponseTopic) == (
            b"question",
            "mosquitto/replies",
        )
        answering.publish(request.properties.ResponseTopic, b"answer", 1)
        assert asking.stdout.readline() == b"answer\n"
        assert asking.wait(RUN_TIMEOUT_S) == 0


def test_a_shared_subscription_shares(clients) -> None:
    clients.pub("mqttv5", "-t", "mosquitto/ready", "-r", "-m", "ready")
    given = ("-t", "mosquitto/ready", "-t", "$share/group/mosquitto/shared", "-q", "1", "-W", "60")
    reading, writing = os.pipe()
    with open(reading, "rb") as printed:
        for member in ("one", "two"):
            more = (*given, "-F", f"{member} %p")
            clients.start("mosquitto_sub", "mqttv5", *more, stdout=writing)
        os.close(writing)
        assert sorted(printed.readline() for _ in range(2)) == [b"one ready\n", b"two ready\n"]
        numbers = [b"%d" % number for number in range(40)]
        clients.pub("mqttv5", "-t", "mosquitto/shared", "-q", "1", "-l", input=b"\n".join(numbers))
        got = [printed.readline().split() for _ in numbers]
    assert sorted(number for _, number in got) == sorted(numbers)
    assert {member for member, _ in got} == {b"one", b"two"}


def test_a_refused_connect_has_its_reason(clients) -> None:
    done = clients.run("mosquitto_pub", "mqttv5", "-i", "x" * 2000, "-t", "a", "-m", "x")
    assert done.returncode != 0
    assert b"Client Identifier not valid" in done.stderr
