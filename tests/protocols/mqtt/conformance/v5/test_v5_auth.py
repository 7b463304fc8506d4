"""Enhanced authentication: AUTH with SCRAM-SHA-256 (MQTT 5.0, sections 3.15 and 4.12).

The client's half of RFC 5802 is written out here, so that nothing of ours checks itself.
"""

import base64
import hashlib
import hmac

import pytest
from mqtt_clauses import both, proves
from mqtt_raw import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PING,
    V5,
    auth,
    connect,
    disconnect,
    packet,
    publish,
)

METHOD = "SCRAM-SHA-256"
PASSWORD = b"pencil"
SALT = b"0123456789abcdef"
ITERATIONS = 4096


def _mac(key, data):
    return hmac.new(key, data, hashlib.sha256).digest()


SALTED = hashlib.pbkdf2_hmac("sha256", PASSWORD, SALT, ITERATIONS)
CLIENT_KEY, SERVER_KEY = _mac(SALTED, b"Client Key"), _mac(SALTED, b"Server Key")
STORED_KEY = hashlib.sha256(CLIENT_KEY).digest()


def b64(data):
    return base64.b64encode(data).decode()


class Scram:
    """One exchange. Attributes: first, the client's first message."""

    def __init__(self, user="anna", password=PASSWORD, nonce="rOprNGfwEbeRWgbNEkqO"):
        self.password = password
        self.bare = f"n={user},r={nonce}"
        self.first = f"n,,{self.bare}".encode()

    def final(self, challenge):
        """The client's final message for the server's first."""
        fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password, base64.b64decode(fields["s"]), int(fields["i"])
        )
        key = _mac(salted, b"Client Key")
        without = f"c={b64(b'n,,')},r={fields['r']}"
        self.message = f"{self.bare},{challenge.decode()},{without}".encode()
        signature = _mac(hashlib.sha256(key).digest(), self.message)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without},p={b64(proof)}".encode()

    @property
    def server_final(self):
        """What a server that knows the password answers."""
        return f"v={b64(_mac(SERVER_KEY, self.message))}".encode()


@pytest.fixture(scope="module")
def gateway(gateway_type, tmp_path_factory):
    """With one user, and a second listener for clients without credentials."""
    users = tmp_path_factory.mktemp("users") / "users"
    users.touch(0o600)
    users.write_text(
        f"anna:SCRAM-SHA-256${ITERATIONS}:{b64(SALT)}${b64(STORED_KEY)}:{b64(SERVER_KEY)}\n"
    )
    config = f"""
[[listeners]]
protocol = "mqtt"
bind = "127.0.0.1:0"
allow_anonymous = true

[[extensions]]
plugin = "auth-file"
users = "{users}"
"""
    with gateway_type(config) as running:
        yield running


def begin(client, name, scram, **options):
    """CONNECT with the first message; return the challenge."""
    client.send(connect(name, version=V5, auth_method=METHOD, auth_data=scram.first, **options))
    challenge = client.receive(AUTH)
    assert (challenge.code, challenge.props["auth_method"]) == (0x18, METHOD)
    return challenge.props["auth_data"]


def enters(client, name, **options):
    """The whole exchange; return CONNACK."""
    scram = Scram()
    challenge = begin(client, name, scram, **options)
    client.send(auth(0x18, auth_method=METHOD, auth_data=scram.final(challenge)))
    answer = client.receive(CONNACK)
    assert answer.code == 0
    assert answer.props["auth_data"] == scram.server_final
    return answer


# ------------------------------------------------------------------------------------ connecting


@proves("5.0", "4.12.0-2 4.12.0-5 3.15.2-1 3.2.0-1 3.1.4-2")
def test_a_client_that_knows_the_password_gets_in(dial, name):
    client = dial(V5)
    answer = enters(client, name)
    assert answer.props["auth_method"] == METHOD
    client.subscribe(name)
    client.publish(name, b"x")
    assert client.message().body == b"x"


@proves("5.0", "4.12.0-4 3.1.4-2 3.14.0-1")
@pytest.mark.parametrize("user", ["anna", "nobody"])
def test_a_wrong_password_is_refused_with_a_connack(dial, name, user):
    client = dial(V5)
    scram = Scram(user, b"wrong")
    challenge = begin(client, name, scram)
    client.send(auth(0x18, auth_method=METHOD, auth_data=scram.final(challenge)))
    answer = client.receive(CONNACK)
    assert (answer.code, answer.session_present) == (0x87, 0)
    assert client.is_closed()


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "scram-sha-256", "", "PLAIN"])
@proves("5.0", "4.12.0-1")
def test_an_unknown_method_is_refused(dial, name, method):
    client = dial(V5)
    answer = client.connect(name, auth_method=method, auth_data=b"x")
    assert answer.code == 0x8C
    assert client.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        publish("a", b"x", version=V5),
        PING,
        connect("again", version=V5),
        b"\x82\x07\x00\x01\x00\x00\x01a\x00",
    ],
    ids=["PUBLISH", "PINGREQ", "CONNECT", "SUBSCRIBE"],
)
@proves("5.0", "3.1.2-30 3.14.0-1 4.13.1-1")
def test_during_the_exchange_a_client_sends_nothing_but_auth(dial, name, data):
    client = dial(V5)
    begin(client, name, Scram())
    answer = client.send(data).receive(CONNACK)
    assert (answer.code, answer.session_present) == (0x82, 0)
    assert client.is_closed()


def test_during_the_exchange_a_client_may_leave(dial, name):
    client = dial(V5)
    begin(client, name, Scram())
    assert client.send(disconnect()).is_closed()


@pytest.mark.parametrize("code", [0x00, 0x19, 0x80])
@proves("5.0", "4.12.0-3 3.15.2-1")
def test_a_client_continues_with_0x18(dial, name, code):
    client = dial(V5)
    scram = Scram()
    challenge = begin(client, name, scram)
    client.send(auth(code, auth_method=METHOD, auth_data=scram.final(challenge)))
    assert client.receive(CONNACK).code == (0x81 if code == 0x80 else 0x82)
    assert client.is_closed()


@pytest.mark.parametrize("props", [{}, {"auth_method": "SCRAM-SHA-512"}], ids=["none", "other"])
@proves("5.0", "4.12.0-5")
def test_every_auth_has_the_method_of_connect(dial, name, props):
    client = dial(V5)
    scram = Scram()
    challenge = begin(client, name, scram)
    client.send(auth(0x18, auth_data=scram.final(challenge), **props))
    assert client.receive(CONNACK).code == 0x82
    assert client.is_closed()


@proves("5.0", "4.12.0-6 4.12.0-7")
def test_without_a_method_there_is_no_auth_either_way(dial, name):
    client = dial(V5)
    answer = client.connect(name)  # this listener lets anybody in
    assert answer.code == 0
    assert not {"auth_method", "auth_data"} & set(answer.props)
    client.send(auth(0x19, auth_method=METHOD, auth_data=Scram().first))
    assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@both("", "3.1.4-2")
def test_a_wrong_plain_password_is_refused(dial, name, version):
    client = dial(version)
    answer = client.connect(name, username="anna", password=b"wrong")
    assert answer.code == (0x86 if version == V5 else 4)
    assert client.is_closed()


@both("3.1.3-1", "3.1.3-1")
def test_user_name_and_password_are_read_behind_the_will(dial, name, version):
    client = dial(version)
    answer = client.connect(name, username="anna", password=PASSWORD, will=("anna", b"pencil"))
    assert answer.code == 0


# ----------------------------------------------------------------------------- authenticating again


def again(client, scram, method=METHOD):
    client.send(auth(0x19, auth_method=method, auth_data=scram.first))
    challenge = client.receive(AUTH)
    assert (challenge.code, challenge.props["auth_method"]) == (0x18, METHOD)
    client.send(auth(0x18, auth_method=METHOD, auth_data=scram.final(challenge.props["auth_data"])))


@proves("5.0", "4.12.1-1 4.12.0-2 4.12.0-5 3.15.2-1")
def test_a_client_authenticates_again_while_messages_go_on(dial, name):
    client = dial(V5)
    enters(client, name)
    client.subscribe(name)
    scram = Scram(nonce="another")
    client.send(auth(0x19, auth_method=METHOD, auth_data=scram.first))
    challenge = client.receive(AUTH)
    assert challenge.code == 0x18
    client.publish(name, b"meanwhile")
    assert client.message().body == b"meanwhile"
    client.send(auth(0x18, auth_method=METHOD, auth_data=scram.final(challenge.props["auth_data"])))
    done = client.receive(AUTH)
    assert (done.code, done.props["auth_method"]) == (0x00, METHOD)
    assert done.props["auth_data"] == scram.server_final
    assert client.is_quiet()


@proves("5.0", "4.12.1-2 4.13.2-1 3.14.2-1")
def test_failing_to_authenticate_again_ends_the_connection(dial, name):
    client = dial(V5)
    enters(client, name)
    again(client, Scram(password=b"wrong"))
    assert client.receive(DISCONNECT).code == 0x87
    assert client.is_closed()


@proves("5.0", "4.12.1-1")
def test_authenticating_again_by_another_method_ends_the_connection(dial, name):
    client = dial(V5)
    enters(client, name)
    client.send(auth(0x19, auth_method="SCRAM-SHA-512", auth_data=Scram().first))
    assert client.receive(DISCONNECT).code == 0x82
    assert client.is_closed()


@pytest.mark.parametrize(
    "data",
    [auth(0x18, auth_method=METHOD, auth_data=b"x"), packet(0xF0), packet(0xF0, b"\x01\x00")],
    ids=["0x18", "empty", "0x01"],
)
@proves("5.0", "3.15.2-1 4.13.1-1")
def test_an_auth_that_nobody_asked_for_ends_the_connection(dial, name, data):
    client = dial(V5)
    enters(client, name)
    assert client.send(data).receive(DISCONNECT).code in (0x81, 0x82)
    assert client.is_closed()


def test_a_session_goes_on_after_an_exchange(dial, name):
    client = dial(V5)
    enters(client, name, clean=False, session_expiry=1000)
    client.subscribe(name, 1)
    client.drop()
    client = dial(V5)
    assert enters(client, name, clean=False, session_expiry=1000).session_present == 1
