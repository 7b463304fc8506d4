"""Async tests run on uvloop, and what goes wrong beside them on their loop fails them, too.

The hooks here are those of ``tests/conftest.py``. A folder whose tests need another loop has a
``pytest_asyncio_loop_factories`` of its own, made of :func:`watched`.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import pytest
import uvloop

LoopFactory = Callable[[], AbstractEventLoop]

_unhandled: Final[list[dict[str, Any]]] = []


def watched(factory: LoopFactory) -> LoopFactory:
    """Loops of *factory* that write down each exception that nobody handled."""

    def make() -> AbstractEventLoop:
        loop = factory()
        loop.set_exception_handler(_note)
        return loop

    return make


def _note(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    _unhandled.append(context)
    if isinstance(context.get("exception"), pytest.fail.Exception):
        # The time limit came while the loop was waiting: it reaches nobody there, but for us.
        for task in asyncio.all_tasks(loop):
            task.cancel()


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    return {"uvloop": watched(uvloop.new_event_loop)}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """An exception in a callback or in a task that nobody awaits fails the test."""
    _unhandled.clear()
    try:
        yield
    except asyncio.CancelledError:
        _fail_if_unhandled()
        raise
    _fail_if_unhandled()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """And so does one in a task that was cancelled when the loop ended."""
    yield
    _fail_if_unhandled()


def _fail_if_unhandled() -> None:
    if _unhandled:
        problem = _unhandled[0]
        _unhandled.clear()
        error = problem.get("exception")
        if isinstance(error, pytest.fail.Exception):
            raise error
        raise AssertionError(f"unhandled on the event loop: {problem['message']}") from error
