"""What the listener's table may say, and what it may not."""

from pathlib import Path

import pytest
import trustme

from tidegate.config import parse_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError, ListenerConfig, parse_options
from tidegate_admin._options import AdminOptions, check


def checked(
    table: dict[str, object],
    *,
    host: str = "127.0.0.1",
    transport: str = "tcp",
    anonymous: bool = False,
    authenticated: bool = False,
) -> None:
    options = parse_options(AdminOptions, table)
    check(
        ListenerConfig("admin", transport, host, 8161, anonymous, options, authenticated), options
    )


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, object]:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "both.pem").chmod(0o600)
    both = str(tmp_path / "both.pem")
    return {"tls_certificate": both, "tls_key": both}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    checked({}, host=host)


@pytest.mark.parametrize("host", ["", "192.0.2.1", "gateway.example", "::"])
def test_elsewhere_wants_tls_and_users(tls: dict[str, object], host: str) -> None:
    with pytest.raises(ConfigError, match="in clear"):
        checked({}, host=host, authenticated=True)
    with pytest.raises(ConfigError, match="nothing authenticates operators"):
        checked(tls, host=host, transport="tls")
    with pytest.raises(ConfigError, match="for loopback only"):
        checked({**tls, "token_file": "x"}, host=host, transport="tls", authenticated=True)
    checked(tls, host=host, transport="tls", authenticated=True)


def test_nobody_operates_a_gateway_without_credentials() -> None:
    with pytest.raises(ConfigError, match="remove the key"):
        checked({}, anonymous=True)


def test_what_has_no_effect_is_an_error(tls: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no effect"):
        checked(tls)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tls_key": None}, "tls_key: is required"),
        ({"tls_certificate": None}, "tls_certificate: is required"),
        ({"tls_key": "/nowhere"}, "cannot be read"),
        ({"tls_certificate": "/nowhere"}, "cannot be read"),
        ({"tls_certificate": "/dev/null"}, "contains no certificate"),
    ],
)
def test_a_certificate_is_looked_at(
    tls: dict[str, object], change: dict[str, object], problem: str
) -> None:
    table = {name: value for name, value in {**tls, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=problem):
        checked(table, transport="tls")


def test_a_key_that_everybody_can_read_is_refused(tls: dict[str, object], tmp_path: Path) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == tmp_path.stat().st_uid and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    Path(str(tls["tls_key"])).chmod(0o644)
    with pytest.raises(ConfigError, match="can read it"):
        checked(tls, transport="tls")


@pytest.mark.parametrize("name", ["", "a:80", "http://a", "a b", "a/"])
def test_a_host_is_a_name_alone(name: str) -> None:
    with pytest.raises(ConfigError, match="no name of a host"):
        checked({"hosts": [name]})


@pytest.mark.parametrize("name", ["a.>.b", "queue://a*", "queue://"])
def test_what_metrics_count_is_a_filter(name: str) -> None:
    with pytest.raises(ConfigError, match="metrics_destinations"):
        checked({"metrics_destinations": name})
    for right in ("", ">", "queue://orders.>", "topic://a"):
        checked({"metrics_destinations": right})


def test_the_configuration_says_what_to_do() -> None:
    config = parse_config('[[listeners]]\nprotocol = "admin"\nbind = ":8161"\ntransport = "tls"')
    listener = resolve(config, PluginHost()).listeners[0]
    assert not listener.config.authenticated
    with pytest.raises(ConfigError, match="tls_certificate"):
        listener.factory.create(listener.config, None)  # type: ignore[arg-type]  # it must not use it
