"""For all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def the_log_is_as_it_was() -> Iterator[None]:
    """A command configures the log of its process, which here is that of all tests."""
    loggers = [logging.getLogger(name) for name in (None, "asyncio", "py4j", "pyspark")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
