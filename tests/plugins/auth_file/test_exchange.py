"""SCRAM exchanges, step by step."""

import base64

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scramp import ScramClient

from tidegate.spi import (
    AccessError,
    Principal,
)
from tidegate_auth_file._directory import UserDirectory
from tidegate_auth_file._exchange import MESSAGE_BYTES_MAX, ScramExchange
from tidegate_auth_file._verifier import NAME_BYTES_MAX, make

METHODS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def directory(users_file, line):
    return UserDirectory(
        users_file(
            line("alice", "secret"),
            line("alice", "secret", "SCRAM-SHA-512"),
            line("IX", "pass word"),
            line("a=b,c", "secret"),
        )
    )


async def log_in(directory, name, password, method="SCRAM-SHA-256", client_method=None, **more):
    """A whole exchange with the library's client; it checks the server's signature too."""
    client = ScramClient([client_method or method], name, password, **more)
    exchange = ScramExchange(method, directory)

    client.set_server_first((await exchange.step(client.get_client_first().encode())).decode())
    assert exchange.principal is None
    client.set_server_final((await exchange.step(client.get_client_final().encode())).decode())
    assert exchange.principal is not None
    return exchange.principal.name


@pytest.mark.parametrize("method", METHODS)
async def test_a_client_with_the_password_gets_in_and_knows_the_server(directory, method):
    assert await log_in(directory, "alice", "secret", method) == "alice"


@pytest.mark.parametrize(
    ("name", "password", "principal"),
    [("\u2168", "pass\u00a0word", "IX"), ("a=b,c", "secret", "a=b,c")],
)
async def test_names_and_passwords_are_prepared_and_escaped(directory, name, password, principal):
    assert await log_in(directory, name, password) == principal


@pytest.mark.parametrize(
    ("name", "password", "method"),
    [
        ("alice", "Secret", "SCRAM-SHA-256"),
        ("nobody", "secret", "SCRAM-SHA-256"),
        ("IX", "pass word", "SCRAM-SHA-512"),  # has no line for it
    ],
)
async def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    directory, name, password, method
):
    with pytest.raises(AccessError) as caught:
        await log_in(directory, name, password, method)
    assert caught.value.problem == "wrong user name or password"


async def test_the_example_of_rfc_7677_gives_the_same_messages(users_file):
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    path = users_file(f"user:{make('pencil', 'SCRAM-SHA-256', 4096, salt).written()}")
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    exchange = ScramExchange("SCRAM-SHA-256", UserDirectory(path), nonce)
    assert await exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert await exchange.step(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.principal == Principal("user")


async def first_and_final(directory, change=lambda final: final, header="n,,"):
    """An honest client's messages, the last one changed."""
    client = ScramClient(["SCRAM-SHA-256"], "alice", "secret")
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    client_first = header + client.get_client_first()[3:]
    client.set_server_first((await exchange.step(client_first.encode())).decode())
    final = change(client.get_client_final())
    return exchange, final


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(",p=", "x,p="),  # the nonce
        lambda final: final.replace("c=biws", "c=eSws"),  # y,, after n,,
        lambda final: final.replace("c=biws", "c=!"),
        lambda final: final[: final.index(",p=")],
        lambda final: final[: final.index(",p=")] + ",p=AAAA",
        lambda final: final[: final.index(",p=")] + ",p=" + base64.b64encode(bytes(32)).decode(),
        lambda final: "",
    ],
)
async def test_a_last_message_that_was_tampered_with_is_refused(directory, change):
    exchange, final = await first_and_final(directory, change)
    with pytest.raises(AccessError):
        await exchange.step(final.encode())
    assert exchange.principal is None
    with pytest.raises(AccessError, match="over"):
        await exchange.step(final.encode())


async def test_a_message_of_another_exchange_is_refused(directory):
    _, final = await first_and_final(directory)
    exchange, _ = await first_and_final(directory)
    with pytest.raises(AccessError):
        await exchange.step(final.encode())


async def test_nothing_follows_success(directory):
    exchange, final = await first_and_final(directory)
    await exchange.step(final.encode())
    assert exchange.principal == Principal("alice")
    with pytest.raises(AccessError, match="over"):
        await exchange.step(b"")


async def test_a_client_that_could_bind_to_the_channel_goes_on_without(directory):
    """RFC 5802 section 6: ``y``, because we do not say that we could."""
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    assert (await exchange.step(b"y,,n=alice,r=abc")).startswith(b"r=abc")


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=alice,r=abc",
        b"p=tls-exporter,,n=alice,r=abc",
        b"n,a=root,n=alice,r=abc",  # nobody acts for somebody else
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,,n=a=b,r=abc",
        b"n,,n=a\0b,r=abc",
        b"x,,n=alice,r=abc",
        b"alice",
        b"\xff",
        b"n,,n=" + b"a" * MESSAGE_BYTES_MAX + b",r=abc",
        b"n,,n=" + b"a" * (NAME_BYTES_MAX + 1) + b",r=abc",
        "n,,n={},r=abc".format("\ufdfa" * 80).encode(),  # 18 characters of each
        "n,,n=alice,r=abc,n={}".format("\ufdfa" * 80).encode(),
    ],
)
async def test_a_first_message_that_cannot_be_followed_is_refused(directory, first):
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    with pytest.raises(AccessError):
        await exchange.step(first)
    with pytest.raises(AccessError, match="over"):
        await exchange.step(b"n,,n=alice,r=abc")


async def test_a_client_may_wait_to_be_asked_once(directory):
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    assert await exchange.step(b"") == b""
    with pytest.raises(AccessError):
        await exchange.step(b"")
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    await exchange.step(b"")
    assert (await exchange.step(b"n,,n=alice,r=abc")).startswith(b"r=abc")


async def test_a_user_who_was_added_meanwhile_gets_in(users_file, line):
    directory = UserDirectory(users_file(line("alice", "secret")))
    users_file(line("bob", "secret"))
    assert await log_in(directory, "bob", "secret") == "bob"


pieces = st.sampled_from(
    [
        b"n,,",
        b"y,,",
        b"p=x,,",
        b"n=alice",
        b"r=abc",
        b",",
        b"=",
        b"c=biws",
        b"p=AAAA",
        b"\xff",
        b"\0",
        b"m=1",
    ]
)
messages = st.binary(max_size=30) | st.lists(pieces, max_size=8).map(b"".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(messages, min_size=1, max_size=4), st.sampled_from(METHODS))
async def test_any_bytes_are_answered_or_refused_and_nobody_gets_in(directory, data, method):
    exchange = ScramExchange(method, directory)

    try:
        for message in data:
            await exchange.step(message)
    except AccessError:
        pass
    assert exchange.principal is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=8), messages)
async def test_any_last_message_is_refused(directory, name, final):
    exchange = ScramExchange("SCRAM-SHA-256", directory)
    try:
        answer = await exchange.step(f"n,,n={name},r=abc".encode())
    except AccessError:
        return
    nonce = answer.partition(b",")[0]
    with pytest.raises(AccessError):
        await exchange.step(b"c=biws," + nonce + b"," + final)
