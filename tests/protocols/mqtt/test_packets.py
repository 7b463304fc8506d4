"""Packets as values."""

import pytest

from tidegate_protocols.mqtt import Connect, Publish


def test_a_connect_never_shows_its_password():
    packet = Connect(client_id="dev", username="u", password=b"secret")
    assert "secret" not in repr(packet)
    assert "dev" in repr(packet)


def test_packets_are_values():
    assert Publish("a", b"x", 1, 2) == Publish("a", b"x", 1, 2)
    with pytest.raises(AttributeError):
        Publish("a", b"x").topic = "b"  # type: ignore[misc]  # that is the point
