"""One running gateway for all interoperation tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory: Path = tmp_path_factory.mktemp("gateway")
    with GatewayProcess(directory) as running:
        yield running
        assert running.stop() == 0, running.tail()
    assert "Traceback" not in running.log.read_text(), running.tail()
