"""Packets as values."""

import pytest

from tidegate_protocols.mqtt import Connect, Puback, Publish, ReasonCode, TopicRequest
from tidegate_protocols.mqtt.codec.packets import Auth
from tidegate_protocols.mqtt.codec.properties import NO_PROPERTIES, Properties


def test_a_connect_never_shows_its_password():
    packet = Connect(client_id="dev", username="u", password=b"secret")
    assert "secret" not in repr(packet)
    assert "dev" in repr(packet)


def test_packets_are_values():
    assert Publish("a", b"x", 1, 2) == Publish("a", b"x", 1, 2)
    with pytest.raises(AttributeError):
        Publish("a", b"x").topic = "b"  # type: ignore[misc]  # that is the point


def test_an_auth_never_shows_its_data():
    packet = Auth(ReasonCode.SUCCESS, Properties(authentication_data=b"secret"))
    assert "secret" not in repr(packet)


def test_what_5_0_adds_defaults_to_what_older_versions_mean():
    assert Puback(7) == Puback(7, ReasonCode.SUCCESS, NO_PROPERTIES)
    assert Puback(7).properties is Publish("a", b"").properties is NO_PROPERTIES
    assert TopicRequest("a", 1) == TopicRequest("a", 1, False, False, 0)
