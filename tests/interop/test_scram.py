"""Users with passwords against a running gateway: SCRAM over MQTT 5.0's AUTH, plain over the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from mqtt_raw import AUTH, CONNACK, DISCONNECT, V5, V31, V311, Client, Packet, auth, connect
from scramp import ScramClient
from wire import StompClient

from tidegate_auth_file._verifier import make

pytestmark = pytest.mark.interop

METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def write(path: Path, *users: tuple[str, str, str]) -> None:
    """Exchange the file of users in one step."""
    made = path.with_suffix(".new")
    made.touch(0o600)
    made.write_text(
        "".join(
            f"{name}:{make(password, method, 4096, b'0123456789abcdef').written()}\n"
            for name, password, method in users
        )
    )
    made.replace(path)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scram") / "users"
    write(path, *(("alice", "secret", method) for method in METHODS), ("bob", "b", METHODS[0]))
    return path


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, users: Path) -> Iterator[GatewayProcess]:
    extra = f'[[extensions]]\nplugin = "auth-file"\nusers = "{users}"\n'
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), extra=extra) as running:
        yield running
        assert running.stop() == 0, running.tail()
    log = running.log.read_text()
    assert "Traceback" not in log, running.tail()
    assert "secret" not in log


class ScramConnection:
    """An MQTT 5.0 client that goes through SCRAM."""

    def __init__(self, port: int, name: str, password: str, method: str = METHODS[0]) -> None:
        self.mqtt = Client(port, V5)
        self.name = name
        self.password = password
        self.method = method

    def close(self) -> None:
        self.mqtt.socket.close()

    def first(self) -> bytes:
        self.scram = ScramClient([self.method], self.name, self.password)
        return self.scram.get_client_first().encode()

    def final(self, challenge: Packet) -> bytes:
        assert challenge.props is not None
        assert (challenge.code, challenge.props["auth_method"]) == (0x18, self.method)
        self.scram.set_server_first(challenge.props["auth_data"].decode())
        data = self.scram.get_client_final().encode()
        return auth(0x18, auth_method=self.method, auth_data=data)

    def check(self, answer: Packet) -> None:
        """The server has proved that it knows the password, too."""
        assert answer.props is not None
        assert answer.props["auth_method"] == self.method
        self.scram.set_server_final(answer.props["auth_data"].decode())

    def connect(self) -> Packet:
        first = connect("device", version=V5, auth_method=self.method, auth_data=self.first())
        challenge = self.mqtt.send(first).receive(AUTH)
        return self.mqtt.send(self.final(challenge)).receive(CONNACK)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.mqtt_clause("5.0:MQTT-4.12.0-2", "5.0:MQTT-4.12.0-5")
def test_a_client_with_the_password_gets_in_and_knows_the_server(
    gateway: GatewayProcess, method: str
) -> None:
    with closing(ScramConnection(gateway.mqtt_port, "alice", "secret", method)) as client:
        answer = client.connect()
        assert answer.code == 0
        client.check(answer)
        assert client.mqtt.subscribe("a", 1) == 1
        assert client.mqtt.publishes("a", b"1").code == 0
        assert client.mqtt.message().body == b"1"


@pytest.mark.parametrize(
    ("name", "password", "method"),
    [
        ("alice", "Secret", METHODS[0]),
        ("nobody", "secret", METHODS[0]),
        ("bob", "b", METHODS[1]),
    ],
)
@pytest.mark.mqtt_clause("5.0:MQTT-4.12.0-4")
def test_anybody_else_is_refused_after_the_same_steps(
    gateway: GatewayProcess, name: str, password: str, method: str
) -> None:
    with closing(ScramConnection(gateway.mqtt_port, name, password, method)) as client:
        assert client.connect().code == 0x87
        assert client.mqtt.is_closed()


@pytest.mark.mqtt_clause("5.0:MQTT-4.12.0-1")
def test_a_method_that_is_not_offered_is_refused(gateway: GatewayProcess) -> None:
    client = Client(gateway.mqtt_port, V5)
    with client.socket:
        assert client.connect("device", auth_method="SCRAM-SHA-1", auth_data=b"x").code == 0x8C
        assert client.is_closed()


@pytest.mark.parametrize("data", [b"\xff", b"n,,n=alice", b"p=tls-unique,,n=alice,r=x"])
def test_nonsense_is_refused(gateway: GatewayProcess, data: bytes) -> None:
    client = Client(gateway.mqtt_port, V5)
    with client.socket:
        assert client.connect("device", auth_method=METHODS[0], auth_data=data).code == 0x87
        assert client.is_closed()


def test_a_client_may_begin_with_its_first_auth(gateway: GatewayProcess) -> None:
    with closing(ScramConnection(gateway.mqtt_port, "alice", "secret")) as client:
        mqtt = client.mqtt
        asked = mqtt.send(connect("device", version=V5, auth_method=METHODS[0])).receive(AUTH)
        assert asked.code == 0x18
        first = auth(0x18, auth_method=METHODS[0], auth_data=client.first())
        challenge = mqtt.send(first).receive(AUTH)
        assert mqtt.send(client.final(challenge)).receive(CONNACK).code == 0


def test_a_connected_client_authenticates_again(gateway: GatewayProcess) -> None:
    with closing(ScramConnection(gateway.mqtt_port, "alice", "secret")) as client:
        assert client.connect().code == 0
        again = auth(0x19, auth_method=METHODS[0], auth_data=client.first())
        challenge = client.mqtt.send(again).receive(AUTH)
        answer = client.mqtt.send(client.final(challenge)).receive(AUTH)
        assert answer.code == 0
        client.check(answer)
        assert client.mqtt.publishes("a", b"1").code in (0, 0x10)


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("bob", "b")])
@pytest.mark.mqtt_clause("5.0:MQTT-4.12.1-2")
def test_authenticating_again_wrongly_or_as_somebody_else_ends_the_connection(
    gateway: GatewayProcess, name: str, password: str
) -> None:
    with closing(ScramConnection(gateway.mqtt_port, "alice", "secret")) as client:
        assert client.connect().code == 0
        client.name, client.password = name, password
        again = auth(0x19, auth_method=METHODS[0], auth_data=client.first())
        challenge = client.mqtt.send(again).receive(AUTH)
        assert client.mqtt.send(client.final(challenge)).receive(DISCONNECT).code == 0x87
        assert client.mqtt.is_closed()


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_the_same_password_is_good_without_a_method(gateway: GatewayProcess, version: int) -> None:
    bad_credentials = 0x86 if version == V5 else 4
    for password, code in ((b"secret", 0), (b"wrong", bad_credentials)):
        client = Client(gateway.mqtt_port, version)
        with client.socket:
            assert client.connect("device", username="alice", password=password).code == code


async def test_the_same_password_is_good_over_stomp(gateway: GatewayProcess) -> None:
    client = await StompClient.connect(gateway.stomp_port, login="alice", passcode="secret")
    client.close()
    with pytest.raises(AssertionError, match="ERROR"):
        await StompClient.connect(gateway.stomp_port, login="alice", passcode="wrong")


def test_without_a_password_nobody_gets_in(gateway: GatewayProcess) -> None:
    client = Client(gateway.mqtt_port, V5)
    with client.socket:
        assert client.connect("device").code == 0x87


def test_a_user_who_is_added_while_it_runs_gets_in(gateway: GatewayProcess, users: Path) -> None:
    before = users.read_text()
    try:
        write(users, ("carol", "c", METHODS[0]))
        with closing(ScramConnection(gateway.mqtt_port, "carol", "c")) as client:
            assert client.connect().code == 0
    finally:
        users.write_text(before)


async def test_a_user_who_is_removed_while_it_runs_is_out(
    gateway: GatewayProcess, users: Path
) -> None:
    before = users.read_text()
    try:
        made = users.with_suffix(".new")
        made.touch(0o600)
        made.write_text(before + "dave:{SHA}CEo1Ae3vaEXy8eQZjsOiuBz1xrw=\n")  # sesame
        made.replace(users)
        alice = await StompClient.connect(gateway.stomp_port, login="alice", passcode="secret")
        stomp = await StompClient.connect(gateway.stomp_port, login="dave", passcode="sesame")
        mqtt = Client(gateway.mqtt_port, V5)
        assert mqtt.connect("dave", username="dave", password=b"sesame").code == 0
        users.write_text(before)
        error = await asyncio.wait_for(stomp.receive(), 60)
        assert error.command == "ERROR"
        assert "user no longer exists" in error.headers["message"]
        assert mqtt.receive(DISCONNECT).code == 0x87
        assert mqtt.is_closed()
        mqtt.socket.close()
        alice.send("SEND", b"x", destination="/topic/a", receipt="1")
        await alice.receipt("1")
        await alice.aclose()
        await stomp.aclose()
    finally:
        users.write_text(before)
