"""For all tests."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Generator, Iterator

import examples  # noqa: F401 - profiles of hypothesis
import pytest
from async_tests import (  # noqa: F401 - hooks; tests/_support/runner is on the path
    pytest_asyncio_loop_factories,
    pytest_runtest_call,
    pytest_runtest_teardown,
)
from crash_crew import (  # noqa: F401 - hooks and a fixture
    pytest_collection_finish,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_sessionfinish,
    pytest_terminal_summary,
    results,
)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Generator[None, object, object]:
    """A thread that a failed test left behind must not keep the process, whose result is known."""
    status = yield
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon
    ]
    # (A worker of pytest-xdist has still to send it, and is ended by the process that started it.)
    if left and isinstance(status, int) and "PYTEST_XDIST_WORKER" not in os.environ:
        print("ended in spite of threads:", ", ".join(left))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


@pytest.fixture(autouse=True)
def commands_write_to_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist tells its workers how wide the terminal is; no command is to fold its tables by that."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def the_log_is_as_it_was() -> Iterator[None]:
    """A command configures the log of its process, which here is that of all tests."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "py4j", "pyspark")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
