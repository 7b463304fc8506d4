"""What the conformance kits share: finding the plugin, and running a test on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import inspect
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Protocol, TypeVar, cast

import pluggy
import pytest

from tidegate.spi import ENTRY_POINT_GROUP, hookspecs
from tidegate.spi.hookspecs import PROJECT

#: A test that takes longer than this hangs; in seconds. The slowest takes a few.
SCENARIO_TIMEOUT: Final = 120.0
#: A close that takes longer hangs; in seconds. Together with closing what a failed test left open, with
#: ending its loop, and with ``BLOCKED_TIMEOUT`` after each, less than 15.
CLOSE_TIMEOUT: Final = 8.0
LEFT_TIMEOUT: Final = 3.0
#: When nothing moves for this long after a time limit, the thread is blocked; in seconds.
BLOCKED_TIMEOUT: Final = 1.0

_T = TypeVar("_T")


class Scenarios:
    """Base of the kits: runs each test that is a coroutine function on an event loop of its own.

    So they need no pytest plugin, and ignore any. An exception that nobody awaited (a callback, a
    forgotten task) fails the test too. Arguments of a test with ``async def close`` are closed after
    it, even when it fails: a store that stays open keeps threads, and those keep the process alive.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, _on_its_own_loop(member))


def _on_its_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        given = [*args[1:], *kwargs.values()]
        closing = [one for one in given if inspect.iscoroutinefunction(getattr(one, "close", None))]

        async def guarded() -> None:
            try:
                await test(*args, **kwargs)
                for one in closing:
                    await one.close()
            except BaseException:
                for one in closing:
                    with contextlib.suppress(Exception):
                        await close(one, LEFT_TIMEOUT)
                raise

        run_scenario(guarded())

    return run


class _Closable(Protocol):
    async def close(self) -> None: ...


async def close(closable: _Closable, seconds: float | None = None) -> None:
    """Close it, within :data:`CLOSE_TIMEOUT` unless *seconds* are given.

    Raises: TimeoutError when it hangs, whether it blocks the loop or cannot be cancelled.
    """
    seconds = CLOSE_TIMEOUT if seconds is None else seconds
    with _interrupted(seconds + BLOCKED_TIMEOUT):
        closing = asyncio.ensure_future(closable.close())
        try:
            if not (await asyncio.wait([closing], timeout=seconds))[0]:
                raise TimeoutError(f"close() has not ended after {seconds:g} s")
        finally:
            closing.cancel()
        closing.result()


def end_loop(runner: asyncio.Runner) -> None:
    """Close its loop. A task or a thread that hangs there is abandoned."""
    with contextlib.suppress(TimeoutError), _interrupted(BLOCKED_TIMEOUT):
        runner.close()


@contextlib.contextmanager
def _interrupted(seconds: float) -> Generator[None]:
    """Raise TimeoutError in the main thread when this takes longer, whatever it waits for.

    Does nothing inside another one, whose limit applies, and in other threads, which get no signals.
    """
    is_ours = signal.getsignal(signal.SIGALRM) is _interrupt
    if is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, _interrupt)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds, BLOCKED_TIMEOUT)
    try:
        try:
            yield
        finally:
            _stop_interrupting(before)
    finally:
        _stop_interrupting(
            before
        )  # again: the first call may have been interrupted before it began
        if left:  # of an outer time limit
            signal.setitimer(signal.ITIMER_REAL, max(left + began - time.monotonic(), 0.001))


def _stop_interrupting(before: Any) -> None:
    """*before*: the previous handler."""
    while signal.getsignal(signal.SIGALRM) is _interrupt:
        with contextlib.suppress(TimeoutError):  # it came at the last moment
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _interrupt(_signal: int, _frame: object) -> None:
    raise TimeoutError("it hangs and blocks its thread")


def run_scenario(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run *coroutine* with a time limit; raise what went wrong in it or beside it."""
    problems: list[dict[str, Any]] = []

    async def bounded() -> _T:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )
        async with asyncio.timeout(SCENARIO_TIMEOUT):
            return await coroutine

    runner = asyncio.Runner()
    try:
        result = runner.run(bounded())
    finally:
        end_loop(runner)
    if problems:
        error = problems[0].get("exception")
        raise AssertionError(f"unhandled on the event loop: {problems[0]['message']}") from error
    return result


def plugin_factory(name: str, hook: str) -> object:
    """Load the entry point *name* and ask its hook for a factory.

    Raises: pytest.UsageError that says what is missing.
    """
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        kind = name.partition("-")[0]
        known = sorted(
            point.name
            for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
            if point.name.startswith(f"{kind}-")
        )
        raise pytest.UsageError(
            f"no entry point {name!r} in group {ENTRY_POINT_GROUP!r};"
            f" installed: {', '.join(known) or 'none'}"
        )
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(next(iter(found)).load(), name)
    factory = cast(object, getattr(manager.hook, hook)())
    if factory is None:
        raise pytest.UsageError(f"entry point {name!r} does not implement {hook}()")
    return factory
