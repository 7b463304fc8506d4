"""Fixtures of the broker's tests; the harness itself is ``broker_harness``."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from async_tests import LoopFactory, watched
from virtual_loop import VirtualLoop

from tidegate.broker.operate import paging


def pytest_asyncio_loop_factories() -> dict[str, LoopFactory]:
    """Time is virtual, and what goes wrong on the loop fails the test as elsewhere."""
    return {"virtual": watched(VirtualLoop)}


@pytest.fixture(autouse=True)
def looks_without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still while a test counts the turns that others get, and a rest would last for ever."""
    monkeypatch.setattr(paging, "REST_S", 0)


@pytest.fixture
def logged_errors() -> list[str]:
    """Put substrings here of errors that the test expects to be logged with a traceback."""
    return []


@pytest.fixture(autouse=True)
def no_hidden_errors(caplog: pytest.LogCaptureFixture, logged_errors: list[str]) -> Iterator[None]:
    """What the broker catches and logs, because one client must not stop the others, is a bug."""
    caplog.set_level(logging.WARNING, "tidegate")
    yield
    hidden = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.exc_info and record.name.startswith("tidegate.broker")
    ]
    unexpected = [text for text in hidden if not any(part in text for part in logged_errors)]
    assert not unexpected, unexpected


@pytest.fixture(params=[RuntimeError, SystemExit, KeyboardInterrupt])
def bug(request: pytest.FixtureRequest) -> BaseException:
    """What a plugin may raise that it should not: an exit is an error like any other."""
    return request.param("a bug")
