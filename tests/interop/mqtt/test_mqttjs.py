"""MQTT.js under Node against the running gateway: every version, over every transport.

Needs Node 18 and npm; without them the tests are skipped with the reason, which `.ci/run` counts as
a failure.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from built import node_client

pytestmark = [
    pytest.mark.interop,
    pytest.mark.long,  # its packages are installed first
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None,
        reason="MQTT.js needs Node, and node and npm are not both on PATH",
    ),
]
SOURCE = Path(__file__).parent / "mqttjs"
BUILD = Path(__file__).resolve().parents[3] / "build" / "mqttjs"
SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}
RUN_TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def program() -> Path:
    """The client with its packages, installed beside a copy of it and kept for the next run."""
    return node_client(SOURCE, BUILD, "mqtt")


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
@pytest.mark.parametrize(
    "version", [pytest.param(3, id="3.1"), pytest.param(4, id="3.1.1"), pytest.param(5, id="5.0")]
)
def test_mqttjs(program, mqtt_gateway, version, transport) -> None:
    path = "/mqtt" if transport in ("ws", "wss") else ""
    url = f"{SCHEMES[transport]}://127.0.0.1:{mqtt_gateway.ports[transport]}{path}"
    trust = [mqtt_gateway.cafile] if transport in ("tls", "wss") else []
    done = subprocess.run(
        ["node", str(program), url, str(version), *trust],
        cwd=BUILD,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
