"""Listener options as they are written."""

import dataclasses

import pytest

from tidegate.spi import ConfigError, option_info, parse_options
from tidegate_protocols.mqtt import MqttOptions


def test_sizes_and_times_have_units():
    options = parse_options(MqttOptions, {"packet_bytes_max": "1mb", "session_expiry": "1h"})
    assert options.packet_bytes_max == 1 << 20
    assert options.session_expiry == 3600.0


@pytest.mark.parametrize(
    "table",
    [
        {"packet_bytes_max": "300mb"},  # more than four bytes of remaining length can say
        {"large_message_max_size": "300mb"},
        {"large_message_max_size": "1mb"},  # smaller than packet_bytes_max
        {"inflight_max": 0},
        {"inflight_max": 65_536},
        {"keep_alive_max": "100000s"},
        {"connect_timeout": "0s"},
        {"client_id_bytes_max": 22},  # [MQTT-3.1.3-5]
        {"keepalive_max": "10s"},
        {"receive_maximum": 0},
        {"topic_alias_max": 65_536},
        {"server_redirect": "moved"},
        {"server_reference": "other:1883"},
        {"server_redirect": "elsewhere", "server_reference": "other:1883"},
        {"response_topic_prefix": "$answers"},
        {"response_topic_prefix": "answers/"},
        {"response_topic_prefix": "answers/+"},
    ],
)
def test_what_the_protocol_cannot_do_is_refused(table):
    with pytest.raises(ConfigError):
        parse_options(MqttOptions, table)


def test_a_listener_can_send_its_clients_elsewhere():
    table = {"server_redirect": "use_another", "server_reference": "other:1883"}
    assert parse_options(MqttOptions, table).server_reference == "other:1883"


def test_what_is_streamed_may_be_larger_than_what_is_not():
    assert MqttOptions().large_packet_bytes_max == 16 << 20
    options = parse_options(MqttOptions, {"large_message_max_size": "200mb"})
    assert (options.packet_bytes_max, options.large_packet_bytes_max) == (16 << 20, 200 << 20)


def test_the_options_of_the_transport_are_still_checked():
    with pytest.raises(ConfigError):
        parse_options(MqttOptions, {"tls_certificate": "/does/not/exist.pem"})


def test_every_option_says_what_it_is_for():
    for field in dataclasses.fields(MqttOptions):
        assert len(option_info(field).help) > 40, field.name
