"""One running gateway for all interoperation tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from mqtt_transports import MqttGateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(directory) as running:
        yield running
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()


@pytest.fixture(scope="module")
def mqtt_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttGateway]:
    """The same with MQTT over TCP, TLS, WebSocket and WSS."""
    with MqttGateway(tmp_path_factory.mktemp("gateway")) as running:
        assert isinstance(running, MqttGateway)
        yield running
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()
