"""One running gateway for all interoperation tests of a module."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from async_tests import LoopFactory, watched
from gateway_process import GatewayProcess
from mqtt_transports import MqttGateway


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """Clients run on asyncio's own loop, as they do at home.

    (uvloop 0.23 does not close, with EBUSY, while the other side still ends TLS on a transport that
    amqtt has left.)
    """
    return {"asyncio": watched(asyncio.new_event_loop)}


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
