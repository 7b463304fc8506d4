"""A gateway process and a browser that looks at it, for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import chromium
from console import Console
from free_ports import free_port
from gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    """With what the module's EXTRA, a text or what makes one, adds to its configuration."""
    directory = tmp_path_factory.mktemp("console")
    port = free_port()
    extra = f"""
[[listeners]]
protocol = "admin"
bind = "127.0.0.1:{port}"

[[destinations]]
match = "queue://>"
max_deliveries = 1
"""
    profile = tmp_path_factory.mktemp("profile")
    more = getattr(request.module, "EXTRA", "")
    extra += more if isinstance(more, str) else more(directory)
    with GatewayProcess(directory, extra=extra) as gateway, chromium(profile) as browser:
        yield Console(gateway, port, browser)


@pytest.fixture
def console(running: Console) -> Iterator[Console]:
    """The page must not have logged an error by the end: its policy forbids nothing that it does."""
    running.browser.errors()
    yield running
    assert running.browser.errors() == []
