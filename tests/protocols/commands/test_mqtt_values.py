"""What `tidegate mqtt` makes of its options, and how it prints a message."""

from __future__ import annotations

import json
import ssl
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import typer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tidegate_protocols.commands import mqtt_values as values
from tidegate_protocols.commands.mqtt_values import Address, Output


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("localhost", Address("localhost", 1883)),
        ("localhost:1999", Address("localhost", 1999)),
        ("[::1]:1999", Address("::1", 1999)),
        ("mqtt://broker", Address("broker", 1883)),
        ("mqtt://broker:7/", Address("broker", 7)),
        ("mqtts://broker", Address("broker", 8883, True)),
        ("ws://broker", Address("broker", 80, False, "/mqtt")),
        ("ws://broker:8080/a/b?c=d", Address("broker", 8080, False, "/a/b?c=d")),
        ("wss://broker/", Address("broker", 443, True, "/mqtt")),
    ],
)
def test_an_address_is_a_host_or_a_url(url, address) -> None:
    assert values.read_address(url) == address


@pytest.mark.parametrize(
    ("address", "text"),
    [(Address("a", 1), "a:1"), (Address("::1", 2), "[::1]:2")],
)
def test_an_address_is_shown_as_one_writes_it(address, text) -> None:
    assert str(address) == text


@pytest.mark.parametrize(
    "url",
    [
        "", "http://x", "mqtt://", "mqtt://x/path", "mqtt://x?q", "x:99999", "x:0", "x:port",
        "mqtt://x#f", "mqtt://me@x", "mqtt://me:pw@x",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_at_its_option(url) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        values.read_address(url)
    assert refused.value.param_hint == "'--url'"


def test_tls_files_need_a_tls_address(tmp_path) -> None:
    plain = Address("x", 1)
    assert values.read_tls(plain, None, None, None) is None
    for index in range(3):
        files = [None, None, None]
        files[index] = tmp_path
        with pytest.raises(typer.BadParameter, match="mqtts://"):
            values.read_tls(plain, *files)


def test_a_tls_context_checks_the_broker_and_shows_our_certificate(tmp_path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours = authority.issue_cert("me")
    ours.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    secure = Address("x", 1, is_tls=True)
    for cert, key in (("both.pem", None), ("cert.pem", tmp_path / "key.pem")):
        context = values.read_tls(secure, tmp_path / "ca.pem", tmp_path / cert, key)
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.cert_store_stats()["x509_ca"] == 1
    with pytest.raises(typer.BadParameter, match="needs --cert"):
        values.read_tls(secure, None, None, tmp_path / "key.pem")
    with pytest.raises(typer.BadParameter, match=r"nothing\.pem: No such file"):
        values.read_tls(secure, tmp_path / "nothing.pem", None, None)
    with pytest.raises(typer.BadParameter, match=r"cert\.pem: "):
        values.read_tls(secure, None, tmp_path / "cert.pem", None)


def test_a_login_never_shows_its_password() -> None:
    assert "s3cret" not in repr(values.Login(Address("x", 1), password=b"s3cret"))


def test_protocol_times_are_whole_seconds() -> None:
    assert values.read_seconds("2m", "--x") == 120
    assert values.read_seconds("never", "--x") == 0xFFFF_FFFF
    for text, least, most in (
        ("500ms", 0, 10),
        ("11s", 0, 10),
        ("0s", 1, 10),
        ("never", 0, 10),
        ("soon", 0, values.SECONDS_MAX),
    ):
        with pytest.raises(typer.BadParameter):
            values.read_seconds(text, "--x", least=least, most=most)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "x" * 65_536])
def test_nothing_is_published_to_a_filter(topic) -> None:
    with pytest.raises(typer.BadParameter):
        values.read_topic(topic, "--topic")


def test_a_topic_may_have_every_allowed_byte() -> None:
    assert values.read_topic("ä" * 32_767, "--topic")


def message(body: bytes, properties: Properties | None = None) -> Any:
    return SimpleNamespace(
        payload=body, topic="a/ü", qos=1, retain=True, dup=False, properties=properties
    )


def test_a_body_is_printed_as_its_bytes(capsysbinary) -> None:
    values.show(message(b"\xff\0x"), Output.PLAIN)
    values.show(message(b"y"), Output.VERBOSE)
    assert capsysbinary.readouterr().out == b"\xff\0x\n" + "a/ü y\n".encode()


def test_json_says_all_of_a_message(capsysbinary) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1
    properties.MessageExpiryInterval = 60
    properties.ContentType = "text/plain"
    properties.ResponseTopic = "r"
    properties.CorrelationData = b"\xff"
    properties.SubscriptionIdentifier = [7, 8]
    properties.UserProperty = [("b", "1"), ("b", "2")]
    values.show(message(b"hi", properties), Output.JSON)
    assert json.loads(capsysbinary.readouterr().out) == {
        "topic": "a/ü", "qos": 1, "retain": True, "dup": False, "body": "hi",
        "properties": {
            "payload_format": 1, "expiry_seconds": 60, "content_type": "text/plain",
            "response_topic": "r", "subscription_ids": [7, 8], "correlation_data_base64": "/w==",
            "user": [["b", "1"], ["b", "2"]],
        },
    }  # fmt: skip


def test_json_of_a_message_without_properties_has_none() -> None:
    assert values.describe(message(b"\xff", Properties(PacketTypes.PUBLISH))) == {
        "topic": "a/ü", "qos": 1, "retain": True, "dup": False, "body_base64": "/w==",
    }  # fmt: skip
