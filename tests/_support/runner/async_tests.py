"""Async tests run on uvloop, and what goes wrong beside them on their loop fails them, too.

The hooks here are those of ``tests/conftest.py``. A folder whose tests need another loop has a
``pytest_asyncio_loop_factories`` of its own, made of :func:`watched`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
import uvloop

LoopFactory = Callable[[], AbstractEventLoop]

#: How long the end of a test waits for what it does in threads, seconds: a failed one may have left one that waits
#: for ever, for a client that is told nothing any more.
THREADS_END_S = 30.0

_unhandled: Final[list[dict[str, Any]]] = []


def watched(factory: LoopFactory) -> LoopFactory:
    """Loops of *factory* that write down each exception that nobody handled."""

    def make() -> AbstractEventLoop:
        loop = factory()
        loop.set_exception_handler(_note)
        loop.set_default_executor(_Threads())
        return loop

    return make


class _Threads(ThreadPoolExecutor):
    """Those of ``asyncio.to_thread``, whose end does not wait for ever."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(False, cancel_futures=cancel_futures)
        ends_at = time.monotonic() + THREADS_END_S
        for thread in self._threads if wait else ():
            thread.join(max(0.0, ends_at - time.monotonic()))
            assert not thread.is_alive(), (
                f"a thread that the test began does not end: {_stack_of(thread)}"
            )


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended by now"


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
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            _fail_if_unhandled()
        _close_streams()
        raise
    _fail_if_unhandled()


def _close_streams() -> None:
    """A test that failed could not: its loop would not close, which is told at length, and hides why it failed."""
    for found in gc.get_objects():
        if type(found) is asyncio.StreamWriter:
            # Its loop is closed, or it has none any more.
            with contextlib.suppress(RuntimeError, AttributeError):
                found.transport.abort()


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
