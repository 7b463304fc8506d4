"""Transport options: what does not apply to the transport is refused, never ignored."""

import dataclasses
from pathlib import Path

import pytest

from tidegate.spi import ConfigError, option_info, parse_options
from tidegate_protocols.transport import TRANSPORTS, TransportOptions
from tidegate_protocols.transport._options import check_transport, is_tls, is_websocket

#: Each option with a value that is not its default, and what else it needs to be right.
SETTINGS: dict[str, tuple[object, tuple[str, ...]]] = {
    "tls_certificate": ("both.pem", ()),
    "tls_key": ("server.key", ("tls_certificate",)),
    "tls_key_password_file": ("password", ("tls_certificate", "tls_key")),
    "tls_ca": ("ca.pem", ("tls_certificate", "tls_client_certificate")),
    "tls_client_certificate": ("required", ("tls_certificate", "tls_ca")),
    "tls_principal": ("CN", ("tls_certificate", "tls_ca", "tls_client_certificate")),
    "tls_principal_pattern": (
        "(.*)",
        ("tls_certificate", "tls_ca", "tls_client_certificate", "tls_principal"),
    ),
    "tls_principal_unmatched": (
        "authenticate",
        ("tls_certificate", "tls_ca", "tls_client_certificate", "tls_principal"),
    ),
    "tls_groups": (
        "OU",
        ("tls_certificate", "tls_ca", "tls_client_certificate", "tls_principal"),
    ),
    "tls_groups_pattern": (
        "(.*)",
        ("tls_certificate", "tls_ca", "tls_client_certificate", "tls_principal", "tls_groups"),
    ),
    "tls_version_min": ("1.3", ("tls_certificate",)),
    "tls_ciphers": ("HIGH", ("tls_certificate",)),
    "unread_output_max": ("2mb", ()),
    "unread_output_timeout": ("9s", ()),
    "frame_timeout": ("9s", ()),
    "body_timeout": ("9s", ()),
    "handshake_timeout": ("3s", ()),
    "proxy_protocol": (True, ("proxy_addresses",)),
    "proxy_addresses": (["10.0.0.1"], ("proxy_protocol",)),
    "websocket_origins": (["*"], ()),
    "websocket_message_max": ("1mb", ()),
    "websocket_handshake_max": ("1kb", ()),
}
PATHS = ("tls_certificate", "tls_key", "tls_key_password_file", "tls_ca")


def table(files: Path, *keys: str) -> dict[str, object]:
    values = {key: SETTINGS[key][0] for key in keys}
    if "tls_key_password_file" in keys:
        values["tls_key"] = "locked.key"
    return {key: str(files / str(v)) if key in PATHS else v for key, v in values.items()}


def applies(key: str, transport: str) -> bool:
    if key.startswith("tls_"):
        return transport in ("tls", "wss")
    if key.startswith("websocket_"):
        return transport in ("ws", "wss")
    return transport != "tcp" or key.startswith(("proxy_", "unread_output_", "frame_", "body_"))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("key", SETTINGS)
def test_an_option_without_effect_is_an_error_that_says_where_it_has_one(locked, key, transport):
    needs = SETTINGS[key][1]
    options = parse_options(TransportOptions, table(locked, key, *needs))
    if applies(key, transport):
        check_transport(transport, options)
        return
    with pytest.raises(ConfigError, match="has no effect with transport") as raised:
        check_transport(transport, options)
    assert raised.value.key in (key, *needs)
    assert "wss" in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"tls_key": "k.pem"}, "tls_certificate"),
        ({"tls_version_min": "1.3"}, "tls_certificate"),
        ({"tls_certificate": "/no/such.pem"}, "tls_certificate"),
        ({"websocket_origins": ["app.example"]}, "websocket_origins"),
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_read(wrong, key):
    with pytest.raises(ConfigError) as raised:
        parse_options(TransportOptions, wrong)
    assert raised.value.key == key


def test_every_option_is_in_the_table_above():
    assert set(SETTINGS) == set(TransportOptions.__dataclass_fields__)


def test_defaults_suit_every_transport_and_others_are_refused():
    for transport in TRANSPORTS:
        check_transport(transport, TransportOptions())
    with pytest.raises(ConfigError, match=r"transport: 'quic' is not one of 'tcp', 'tls'"):
        check_transport("quic", TransportOptions())


def test_each_transport_is_what_its_name_says():
    assert [is_tls(t) for t in TRANSPORTS] == [False, True, False, True]
    assert [is_websocket(t) for t in TRANSPORTS] == [False, False, True, True]


def test_paths_and_lists_are_read_as_such(locked):
    names = [
        name for name in SETTINGS if name != "tls_version_min"
    ]  # it leaves no use to tls_ciphers
    options = parse_options(TransportOptions, table(locked, *names))
    assert options.tls_ca == locked / "ca.pem"
    assert options.websocket_origins == ("*",)


def test_every_option_is_documented_and_explained():
    page = (Path(__file__).parents[3] / "docs" / "transports.md").read_text()
    for field in dataclasses.fields(TransportOptions):
        assert f"`{field.name}`" in page, field.name
        assert option_info(field).help, field.name
