"""Keys of an issuer, tokens that it signs, and a client that brings one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tidegate.spi import Credentials
from tidegate_auth_jwt._authenticator import JwtAuthenticator, JwtOptions

ISSUER = "https://issuer.example"
AUDIENCE = "tidegate"


@dataclass
class Issuer:
    """Makes tokens. Attributes: private: keys by kid; algorithms: of each."""

    private: dict[str, Any] = field(default_factory=dict)
    algorithms: dict[str, str] = field(default_factory=dict)

    def add(self, kid: str, algorithm: str, bits: int = 2048) -> None:
        if algorithm.startswith(("RS", "PS")):
            self.private[kid] = rsa.generate_private_key(65537, bits)
        elif algorithm == "ES256":
            self.private[kid] = ec.generate_private_key(ec.SECP256R1())
        elif algorithm == "ES384":
            self.private[kid] = ec.generate_private_key(ec.SECP384R1())
        else:
            self.private[kid] = ed25519.Ed25519PrivateKey.generate()
        self.algorithms[kid] = algorithm

    def public(self, kid: str, /, **changes: object) -> dict[str, object]:
        """The public key, as it stands in the file."""
        key = self.private[kid].public_key()
        algorithm = self.algorithms[kid]
        if algorithm.startswith(("RS", "PS")):
            made = RSAAlgorithm.to_jwk(key, as_dict=True)
        elif algorithm.startswith("ES"):
            made = ECAlgorithm.to_jwk(key, as_dict=True)
        else:
            made = OKPAlgorithm.to_jwk(key, as_dict=True)
        made |= {"kid": kid, "use": "sig"} | changes
        made.pop("key_ops", None)
        return {name: value for name, value in made.items() if value is not None}

    def token(
        self, kid: str = "rsa", /, headers: dict[str, object] | None = None, **claims: object
    ) -> str:
        """A good token but for what is said; None leaves a claim or header out."""
        said = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": int(time.time()) + 3600,
        } | claims
        payload = {name: value for name, value in said.items() if value is not None}
        more: dict[str, Any] = {"kid": kid} | (headers or {})
        if more["kid"] is None:
            del more["kid"]
        made = json.dumps(payload).encode()  # also what no honest issuer would say
        return jwt.PyJWS().encode(made, self.private[kid], self.algorithms[kid], more)


@pytest.fixture(scope="session")
def issuer() -> Issuer:
    made = Issuer()
    for kid, algorithm in (("rsa", "RS256"), ("ec", "ES256"), ("ed", "EdDSA")):
        made.add(kid, algorithm)
    return made


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write keys to the JWKS file and return its path."""
    path = tmp_path / "jwks.json"

    def written(*keys: object) -> Path:
        made = path.with_suffix(".new")
        made.write_text(json.dumps({"keys": keys}))
        made.chmod(0o644)
        made.replace(path)
        return path

    return written


@pytest.fixture
def jwks(issuer: Issuer, write: Callable[..., Path]) -> Path:
    return write(*(issuer.public(kid) for kid in issuer.private))


@pytest.fixture
def make(jwks: Path) -> Callable[..., JwtAuthenticator]:
    def made(**options: Any) -> JwtAuthenticator:
        return JwtAuthenticator(JwtOptions(jwks, ISSUER, (AUDIENCE,), **options))

    return made


@pytest.fixture
def credentials() -> Callable[..., Credentials]:
    def made(token: str | bytes | None, username: str = "") -> Credentials:
        password = token.encode() if isinstance(token, str) else token
        return Credentials(username, password, "device", "mqtt", "127.0.0.1:5", "mqtt://x")

    return made
