"""Tokens that let in, and those that must not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.spi import (
    AccessError,
    AuthenticationExchange,
    Authenticator,
    ConfigError,
    EnhancedAuthenticator,
    Principal,
    Service,
    parse_options,
)
from tidegate_auth_jwt._authenticator import JwtOptions


def encoded(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def test_what_it_is(make):
    made = make()
    assert isinstance(made, Authenticator)
    assert isinstance(made, Service)
    assert repr(made) == "auth-jwt"


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
async def test_a_token_lets_its_bearer_in_until_it_expires(make, issuer, credentials, kid):
    expiry = int(time.time()) + 100
    token = issuer.token(kid, exp=expiry, groups=["ops", "admins"])
    assert await make(leeway=5.0).authenticate(credentials(token)) == Principal(
        "alice", frozenset({"ops", "admins"}), (expiry + 5) * 1_000_000
    )


async def test_what_is_no_token_is_left_to_others(make, credentials):
    for password in (None, b"", b"secret", b"a.b", b"a.b.c.d", b"\xff.a.b", b"a b.c.d"):
        assert await make().authenticate(credentials(password)) is None


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"iss": ["https://issuer.example"]},
        {"aud": "another service"},
        {"aud": ["another service"]},
        {"aud": None},
        {"aud": []},
        {"exp": None},
        {"exp": 1},
        {"exp": "soon"},
        {"exp": True},
        {"exp": "99999999999"},
        {"exp": -1e300},
        {"nbf": 99999999999},
        {"nbf": "soon"},
        {"iat": 99999999999},
        {"aud": ["tidegate", 5]},
        {"aud": "tidegate "},
        {"aud": {"tidegate": 1}},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": ["alice"]},
        {"sub": "a\nb"},
        {"sub": "x" * 257},
        {"groups": 5},
        {"groups": [5]},
        {"groups": ["a\0"]},
        {"groups": [f"g{number}" for number in range(1001)]},
    ],
    ids=str,
)
async def test_a_claim_that_is_wrong_or_missing_is_refused(make, issuer, credentials, claims):
    authenticator = make(token_max=64 << 10)
    with pytest.raises(AccessError) as caught:
        await authenticator.authenticate(credentials(issuer.token(**claims)))
    assert caught.value.problem == "the token is not accepted"


async def test_clocks_may_differ_a_little(make, issuer, credentials):
    token = issuer.token(exp=int(time.time()) - 30)
    assert await make(leeway=300.0).authenticate(credentials(token)) is not None
    with pytest.raises(AccessError):
        await make(leeway=0.0).authenticate(credentials(token))
    token = issuer.token(nbf=int(time.time()) + 100)
    assert await make(leeway=300.0).authenticate(credentials(token)) is not None
    with pytest.raises(AccessError):
        await make(leeway=0.0).authenticate(credentials(token))


@pytest.mark.parametrize("exp", [1e18, 10**4000, 99999999999.5], ids=["float", "int", "half"])
async def test_an_expiry_far_away_is_a_number_that_fits(make, issuer, credentials, exp):
    principal = await make(token_max=64 << 10).authenticate(credentials(issuer.token(exp=exp)))
    assert 0 < principal.expires_at < 1 << 63


class TestSignature:
    """RFC 8725 section 2: what was done to others."""

    @pytest.fixture(autouse=True)
    def refuses(self, make, credentials, caplog):
        """Whatever the test calls with a token."""
        caplog.set_level("INFO")

        async def check(token: str, **options: object) -> str:
            caplog.clear()
            with pytest.raises(AccessError, match="not accepted"):
                await make(**options).authenticate(credentials(token))
            (record,) = caplog.records
            assert token.split(".")[2][:20] not in record.getMessage() or not token.split(".")[2]
            return record.getMessage()

        self.refused = check

    def claims(self) -> dict[str, object]:
        return {
            "iss": "https://issuer.example",
            "aud": "tidegate",
            "sub": "alice",
            "exp": int(time.time()) + 100,
        }

    @pytest.mark.parametrize(
        "name", ["none", "None", "NONE", "nOnE", "", "HS256", "XX", None, 5, []]
    )
    async def test_without_one_or_with_another_algorithm(self, name):
        header = {"alg": name, "typ": "JWT", "kid": "rsa"}
        await self.refused(f"{encoded(header)}.{encoded(self.claims())}.")
        await self.refused(f"{encoded(header)}.{encoded(self.claims())}.{encoded(b'x' * 64)}")

    @pytest.mark.parametrize("algorithm", ["HS256", "RS256"])
    async def test_a_public_key_is_no_shared_secret(self, issuer, algorithm):
        """Signed with what everybody has: the PEM, the DER and the file's own text."""
        key = issuer.private["rsa"].public_key()
        formats = [
            key.public_bytes(coding, serialization.PublicFormat.SubjectPublicKeyInfo)
            for coding in (serialization.Encoding.PEM, serialization.Encoding.DER)
        ]
        for secret in (*formats, json.dumps(issuer.public("rsa")).encode(), b""):
            header = {"alg": algorithm, "typ": "JWT", "kid": "rsa"}
            said = f"{encoded(header)}.{encoded(self.claims())}"
            made = hmac.new(secret, said.encode(), hashlib.sha256).digest()
            await self.refused(f"{said}.{encoded(made)}")

    async def test_the_key_decides_the_algorithm(self, issuer):
        token = jwt.encode(self.claims(), issuer.private["rsa"], "RS512", {"kid": "rsa"})
        assert "InvalidAlgorithm" in await self.refused(token)
        token = jwt.encode(self.claims(), issuer.private["rsa"], "RS256", {"kid": "ec"})
        assert "InvalidAlgorithm" in await self.refused(token)

    async def test_an_algorithm_that_is_not_configured(self, issuer):
        await self.refused(issuer.token("ec"), algorithms=("RS256",))

    async def test_of_somebody_else(self, issuer):
        other = type(issuer)()
        other.add("rsa", "RS256")
        assert "InvalidSignature" in await self.refused(other.token())

    @pytest.mark.parametrize("part", [0, 1, 2])
    async def test_changed(self, issuer, part):
        parts = issuer.token().split(".")
        changed = dict(enumerate(parts))
        text = parts[part]
        middle = len(text) // 2
        changed[part] = text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]
        await self.refused(".".join(changed.values()))

    @pytest.mark.parametrize("kid", ["other", "", "../../dev/null", "rsa\0", 5, ["rsa"], {}])
    async def test_an_unknown_kid(self, issuer, kid):
        token = issuer.token()
        _, claims, signature = token.split(".")
        header = {"alg": "RS256", "typ": "JWT", "kid": kid}
        await self.refused(f"{encoded(header)}.{claims}.{signature}")

    async def test_no_kid_where_there_are_several(self, issuer):
        assert "names no key" in await self.refused(issuer.token(headers={"kid": None}))

    async def test_a_key_that_the_token_brings_itself(self, issuer):
        other = type(issuer)()
        other.add("own", "RS256")
        for headers in (
            {"jwk": other.public("own")},
            {"jku": "https://attacker.example/jwks"},
            {"x5u": "https://attacker.example/x"},
        ):
            await self.refused(other.token("own", headers=headers))
            await self.refused(other.token("own", headers=headers | {"kid": "rsa"}))

    async def test_critical_headers(self, issuer):
        assert "critical" in await self.refused(issuer.token(headers={"crit": ["exp"], "exp": 1}))

    @pytest.mark.parametrize("depth", [100, 6000])
    async def test_json_without_a_bottom(self, depth):
        deep = encoded(b"[" * depth)
        await self.refused(f"{deep}.{deep}.{deep}", token_max=64 << 10)
        header = encoded({"alg": "RS256", "kid": "rsa"})
        await self.refused(f"{header}.{deep}.", token_max=64 << 10)

    async def test_longer_than_allowed(self, issuer):
        assert "token_max" in await self.refused(issuer.token(more="x" * 10_000))


pieces = st.sampled_from([encoded({"alg": "RS256", "kid": "rsa"}), encoded({}), encoded([]), "e30"])
parts = (
    pieces
    | st.binary(max_size=40).map(encoded)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.sampled_from(["alg", "kid", "exp", "crit", "typ"]), inner),
        max_leaves=5,
    ).map(encoded)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.tuples(parts, parts, parts))
async def test_nothing_else_lets_in_or_escapes(make, credentials, made):
    try:
        assert await make().authenticate(credentials(".".join(made))) is None
    except AccessError:
        pass


class TestOptions:
    @pytest.mark.parametrize(
        ("rule", "username", "lets_in"),
        [
            ("optional", "", True),
            ("optional", "alice", True),
            ("optional", "bob", False),
            ("required", "", False),
            ("required", "alice", True),
            ("required", "Alice", False),
            ("any", "bob", True),
        ],
    )
    async def test_the_user_name(self, make, issuer, credentials, rule, username, lets_in):
        authenticator = make(username=rule)
        given = credentials(issuer.token(), username)
        if lets_in:
            assert (await authenticator.authenticate(given)).name == "alice"
        else:
            with pytest.raises(AccessError):
                await authenticator.authenticate(given)

    async def test_claims_by_other_names(self, make, issuer, credentials):
        authenticator = make(principal_claim="user.name", groups_claim="realm_access.roles")
        token = issuer.token(sub=None, user={"name": "bob"}, realm_access={"roles": ["ops"]})
        principal = await authenticator.authenticate(credentials(token))
        assert (principal.name, principal.groups) == ("bob", {"ops"})
        token = issuer.token(**{"user.name": "carol", "user": "x", "realm_access": "x"})
        principal = await authenticator.authenticate(credentials(token))
        assert (principal.name, principal.groups) == ("carol", frozenset())

    async def test_groups_as_words_or_not_at_all(self, make, issuer, credentials):
        token = issuer.token(scope="read  write", groups=["x"])
        found = await make(groups_claim="scope").authenticate(credentials(token))
        assert found.groups == {"read", "write"}
        assert (await make(groups_claim="").authenticate(credentials(token))).groups == frozenset()

    async def test_required_claims(self, make, issuer, credentials):
        authenticator = make(required_claims=("tenant",))
        assert await authenticator.authenticate(credentials(issuer.token(tenant="a"))) is not None
        with pytest.raises(AccessError):
            await authenticator.authenticate(credentials(issuer.token()))

    async def test_one_of_several_audiences(self, jwks, issuer, credentials):
        from tidegate_auth_jwt._authenticator import JwtAuthenticator

        made = JwtAuthenticator(JwtOptions(jwks, "https://issuer.example", ("a", "b")))
        assert await made.authenticate(credentials(issuer.token(aud=["x", "b"]))) is not None

    @pytest.mark.parametrize(
        ("table", "key"),
        [
            ({"audience": []}, "audience"),
            ({"audience": [""]}, "audience"),
            ({"algorithms": []}, "algorithms"),
            ({"algorithms": ["HS256"]}, "algorithms"),
            ({"algorithms": ["none"]}, "algorithms"),
            ({"issuer": ""}, "issuer"),
            ({"principal_claim": ""}, "principal_claim"),
            ({"username": "never"}, "username"),
            ({"leeway": "1h"}, "leeway"),
        ],
    )
    def test_what_would_let_anybody_in_is_refused(self, table, key):
        whole = {"jwks": "x", "issuer": "i", "audience": ["a"]} | table
        with pytest.raises(ConfigError) as caught:
            parse_options(JwtOptions, whole)
        assert caught.value.key == key

    @pytest.mark.parametrize("key", ["jwks", "issuer", "audience"])
    def test_what_has_to_be_said(self, key):
        whole = {"jwks": "x", "issuer": "i", "audience": ["a"]}
        del whole[key]
        with pytest.raises(ConfigError, match="required"):
            parse_options(JwtOptions, whole)


def name_of(exchange: AuthenticationExchange) -> str | None:
    return None if exchange.principal is None else exchange.principal.name


class TestExchange:
    async def test_the_token_is_all_that_is_said(self, make, issuer, credentials):
        authenticator = make()
        assert isinstance(authenticator, EnhancedAuthenticator)
        assert authenticator.methods == ("OAUTH2-JWT",)
        exchange = authenticator.begin("OAUTH2-JWT", credentials(None))
        assert name_of(exchange) is None
        assert await exchange.step(issuer.token().encode()) == b""
        assert name_of(exchange) == "alice"

    async def test_it_may_be_asked_for_once(self, make, issuer, credentials):
        exchange = make().begin("OAUTH2-JWT", credentials(None))
        assert await exchange.step(b"") == b""
        assert name_of(exchange) is None
        await exchange.step(issuer.token().encode())
        assert name_of(exchange) == "alice"
        exchange = make().begin("OAUTH2-JWT", credentials(None))
        await exchange.step(b"")
        with pytest.raises(AccessError):
            await exchange.step(b"")

    @pytest.mark.parametrize("data", [b"secret", b"\xff", b"a.b.c", b"x" * 9000])
    async def test_anything_else_is_refused(self, make, credentials, data):
        exchange = make().begin("OAUTH2-JWT", credentials(None))
        with pytest.raises(AccessError, match="not accepted"):
            await exchange.step(data)
        assert name_of(exchange) is None

    async def test_the_user_name_counts_here_too(self, make, issuer, credentials):
        exchange = make().begin("OAUTH2-JWT", credentials(None, "bob"))
        with pytest.raises(AccessError):
            await exchange.step(issuer.token().encode())

    async def test_other_methods_are_not_offered(self, make, credentials):
        with pytest.raises(AccessError, match="SCRAM"):
            make().begin("SCRAM-SHA-256", credentials(None))
