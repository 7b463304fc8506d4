"""What the sink's table may say, and what it may not."""

from pathlib import Path

import pytest
import trustme

from tidegate.spi import ConfigError, SinkContext, parse_options
from tidegate_sink_flight._options import FlightSinkOptions, Listening, listening_of


def listening(
    tmp_path: Path, table: dict[str, object], *, authenticated: bool = False
) -> Listening:
    options = parse_options(FlightSinkOptions, {"readers": {"etl": "ann"}, **table})
    return listening_of(options, SinkContext("flight", "gw", tmp_path, authenticated))


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, object]:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "both.pem").chmod(0o600)
    both = str(tmp_path / "both.pem")
    return {"tls_certificate": both, "tls_key": both}


def test_loopback_needs_nothing_and_takes_anybody_where_nobody_is_known(tmp_path: Path) -> None:
    assert listening(tmp_path, {}).anonymous
    assert not listening(tmp_path, {}, authenticated=True).anonymous
    assert listening(tmp_path, {"allow_anonymous": True}, authenticated=True).anonymous


@pytest.mark.parametrize("bind", [":8815", "192.0.2.1:8815", "host.example:8815", "[::]:8815"])
def test_elsewhere_wants_tls_and_users(tmp_path: Path, tls: dict[str, object], bind: str) -> None:
    with pytest.raises(ConfigError, match="in clear"):
        listening(tmp_path, {"bind": bind}, authenticated=True)
    with pytest.raises(ConfigError, match="nothing authenticates"):
        listening(tmp_path, {"bind": bind, **tls})
    found = listening(tmp_path, {"bind": bind, **tls}, authenticated=True)
    assert not found.anonymous
    assert "BEGIN CERTIFICATE" in found.certificate


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"bind": "127.0.0.1:99999"}, "bind"),
        ({"readers": {}}, "no row would be kept"),
        ({"readers": {"a b": "ann"}}, "no name of a reader"),
        ({"readers": {"etl": ""}}, "belongs to nobody"),
        ({"allow_anonymous": False}, "nothing authenticates"),
        ({"tls_key": "/nowhere"}, "tls_certificate: is required"),
        ({"tls_certificate": "/nowhere", "tls_key": "/nowhere"}, "cannot be read"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_option(
    tmp_path: Path, table: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        listening(tmp_path, table)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, tls: dict[str, object]) -> None:
    trustme.CA().issue_cert("x").private_key_pem.write_to_path(tmp_path / "other.pem")
    (tmp_path / "other.pem").chmod(0o600)
    with pytest.raises(ConfigError, match="does not belong"):
        listening(tmp_path, {**tls, "tls_key": str(tmp_path / "other.pem")})


def test_keep_alone_is_enough(tmp_path: Path) -> None:
    assert listening(tmp_path, {"readers": {}, "keep": "1h"})
