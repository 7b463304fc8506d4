"""The file of keys."""

from __future__ import annotations

import asyncio
import base64
import logging

import pytest

from tidegate.spi import AccessError, ConfigError, Principal
from tidegate_auth_jwt import _keys
from tidegate_auth_jwt._keys import FILE_BYTES_MAX, KeyFile, read_keys

ALLOWED = ("RS256", "ES256", "EdDSA")


def test_keys_are_found_by_their_kid(jwks):
    keys = KeyFile(jwks, ALLOWED)
    for kid, algorithms in (("rsa", ("RS256",)), ("ec", ("ES256",)), ("ed", ("EdDSA",))):
        found = keys.find(kid)
        assert found is not None
        assert found.algorithms == algorithms
    assert keys.find("other") is None
    assert keys.find(None) is None


def test_a_token_that_names_none_has_the_only_one(issuer, write):
    assert KeyFile(write(issuer.public("rsa", kid=None)), ALLOWED).find(None) is not None


def test_keys_for_anything_else_are_left_out(issuer, write):
    path = write(
        issuer.public("rsa"),
        issuer.public("rsa", kid="1", use="enc"),
        issuer.public("rsa", kid="2", key_ops=["encrypt"]) | {"key_ops": ["encrypt"]},
        issuer.public("rsa", kid="3", alg="RSA-OAEP"),
        issuer.public("rsa", kid="4", alg="RS512"),
        {"kty": "XYZ", "kid": "5"},
        {"kty": "EC", "crv": "secp256k1", "kid": "6"},
    )
    assert list(read_keys(path, ALLOWED)) == ["rsa"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no JWKS"),
        ("{}", "is no JWKS"),
        ('{"keys": {}}', "is no JWKS"),
        ('{"keys": []}', "has no key for signatures with RS256"),
        ('{"keys": [5]}', "key 1 is no object"),
        ('{"keys": [{"kty": "oct", "k": "AAAA", "kid": "a"}]}', "key 1 is a shared secret"),
        ('{"keys": [{"kty": "RSA", "kid": 5}]}', "key 1 has a kid that is no string"),
        ('{"keys": [{"kty": "RSA", "n": "AQAB"}]}', "key 1 cannot be read"),
        ('{"keys": [{"kty": "RSA", "key_ops": 5}]}', "key 1 has key_ops"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text, problem):
    path = tmp_path / "jwks.json"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_keys(path, ALLOWED)
    assert caught.value.key == "jwks"


def test_private_weak_and_double_keys_are_refused(issuer, write):
    with pytest.raises(ConfigError, match="key 1 is a private key"):
        read_keys(write(issuer.public("rsa") | {"d": "AQAB"}), ALLOWED)
    for kind in ("RSA", "EC", "OKP", "AKP", "OCT"):
        for member in ("p", "q", "dp", "qi", "oth", "k", "priv"):
            with pytest.raises(ConfigError, match="key 2 is a private key"):
                read_keys(write(issuer.public("rsa"), {"kty": kind, member: "AQAB"}), ALLOWED)
    with pytest.raises(ConfigError, match="key 2 has the same kid as another one: 'rsa'"):
        read_keys(write(issuer.public("rsa"), issuer.public("ec", kid="rsa")), ALLOWED)
    weak = type(issuer)()
    weak.add("weak", "RS256", bits=1024)
    with pytest.raises(ConfigError, match="key 1 has 1024 bits"):
        read_keys(write(weak.public("weak")), ALLOWED)


def test_a_file_that_others_can_write_or_that_is_none_is_refused(jwks, tmp_path):
    for mode in (0o666, 0o664):
        jwks.chmod(mode)
        with pytest.raises(ConfigError, match=r"can be written by others.*chmod go-w"):
            read_keys(jwks, ALLOWED)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none", ALLOWED)
    large = tmp_path / "large"
    large.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    large.chmod(0o644)
    with pytest.raises(ConfigError, match="is larger than"):
        read_keys(large, ALLOWED)
    large.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_keys(large, ALLOWED)


async def test_a_key_that_is_exchanged_counts_at_once(make, issuer, write, credentials):
    authenticator = make()
    token = issuer.token()
    assert await authenticator.authenticate(credentials(token)) is not None
    write(issuer.public("ec"))
    with pytest.raises(AccessError):
        await authenticator.authenticate(credentials(token))
    assert await authenticator.authenticate(credentials(issuer.token("ec"))) is not None


async def test_who_came_by_a_key_that_is_gone_is_nobody(make, issuer, write, credentials):
    authenticator = make()
    told: list[int] = []
    authenticator._keys._changed = lambda: told.append(1)
    bearer = await authenticator.authenticate(credentials(issuer.token()))
    assert not authenticator.principal_now(Principal("alice"))
    write(issuer.public("rsa", kid="renamed", alg="RS256"), issuer.public("ec"))
    await authenticator._keys.refresh()
    assert authenticator.principal_now(bearer) == bearer  # the same key by another name
    assert told == [1]  # the third key is gone
    other = type(issuer)()
    other.add("renamed", "RS256")
    write(other.public("renamed"), issuer.public("ec"))  # another key by the same name
    await authenticator._keys.refresh()
    assert authenticator.principal_now(bearer) is None
    assert told == [1, 1]
    write(other.public("renamed"), issuer.public("ec"), issuer.public("rsa"))
    await authenticator._keys.refresh()
    assert told == [1, 1]  # one more harms nobody


def test_a_thumbprint_is_that_of_rfc_7638() -> None:
    """Section 3.1, with what is to be left out."""
    key = {
        "kty": "RSA",
        "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc"
        "_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FD"
        "W2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQF"
        "h6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
        "e": "AQAB",
        "alg": "RS256",
        "kid": "2011-04-29",
    }
    wanted = base64.urlsafe_b64decode("NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs=")
    assert _keys._thumbprint(key) == wanted.hex()


async def test_a_file_that_became_wrong_is_logged_once_and_changes_nothing(jwks, caplog):
    keys = KeyFile(jwks, ALLOWED)
    jwks.write_text("half a")
    with caplog.at_level(logging.ERROR):
        await keys.refresh()
        await keys.refresh()
    assert len(caplog.records) == 1
    assert "keys stay as they were" in caplog.text
    assert keys.find("rsa") is not None
    jwks.unlink()
    await keys.refresh()
    assert keys.find("rsa") is not None


async def test_while_it_runs_it_watches_and_then_it_ends(
    make, issuer, write, monkeypatch, credentials
):
    monkeypatch.setattr(_keys, "WATCH_INTERVAL_S", 0.001)
    authenticator = make()
    told = asyncio.Event()
    await authenticator.start(told.set)
    token = await authenticator.authenticate(credentials(issuer.token()))
    assert authenticator.principal_now(token) == token
    write(issuer.public("ec"))
    await asyncio.wait_for(told.wait(), 60)
    assert authenticator.principal_now(token) is None
    await authenticator.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
