"""Transport options: what does not apply to the transport is refused, never ignored."""

from pathlib import Path

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate_protocols.transport import TRANSPORTS, TransportOptions
from tidegate_protocols.transport._options import check_transport, is_tls, is_websocket

SETTINGS = {
    "tls_certificate": "c.pem",
    "tls_key": "k.pem",
    "tls_key_password_file": "p",
    "tls_ca": "ca.pem",
    "tls_client_certificate": "required",
    "tls_version_min": "1.3",
    "tls_ciphers": "HIGH",
    "handshake_timeout": "3s",
    "websocket_origins": ["*"],
    "websocket_message_max": "1mb",
    "websocket_handshake_max": "1kb",
}


def applies(key: str, transport: str) -> bool:
    if key.startswith("tls_"):
        return transport in ("tls", "wss")
    if key.startswith("websocket_"):
        return transport in ("ws", "wss")
    return transport != "tcp"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("key", SETTINGS)
def test_an_option_without_effect_is_an_error_that_says_where_it_has_one(key, transport):
    options = parse_options(TransportOptions, {key: SETTINGS[key]})
    if applies(key, transport):
        check_transport(transport, options)
        return
    with pytest.raises(ConfigError, match="has no effect with transport") as raised:
        check_transport(transport, options)
    assert raised.value.key == key
    assert "wss" in str(raised.value)


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


def test_paths_and_lists_are_read_as_such():
    options = parse_options(TransportOptions, SETTINGS)
    assert options.tls_ca == Path("ca.pem")
    assert options.websocket_origins == ("*",)
