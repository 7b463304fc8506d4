"""What the conformance kits share: finding the plugin, and running a test on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

import pluggy
import pytest

from tidegate.spi import ENTRY_POINT_GROUP, hookspecs
from tidegate.spi.hookspecs import PROJECT

#: A test that takes longer than this hangs; in seconds. The slowest takes a few.
SCENARIO_TIMEOUT: Final = 120.0
#: What takes longer to close hangs; in seconds. With what a test that failed left open less than 15.
CLOSE_TIMEOUT: Final = 10.0
LEFT_TIMEOUT: Final = 4.0

_SelfT = TypeVar("_SelfT")
_P = ParamSpec("_P")
_T = TypeVar("_T")


def scenario(
    function: Callable[Concatenate[_SelfT, _P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[_SelfT, _P], None]:
    """Make a test method of a coroutine function: run it on an event loop of its own.

    An exception that nobody awaited (a callback, a forgotten task) fails the test too. What it was
    given (an argument with ``async def close``) is closed behind it, also when it fails: a store that
    stays open keeps threads, and those keep the process.
    """

    @functools.wraps(function)
    def run(self: _SelfT, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        given = [*args, *kwargs.values()]
        closing = [one for one in given if inspect.iscoroutinefunction(getattr(one, "close", None))]

        async def guarded() -> None:
            try:
                await function(self, *args, **kwargs)
                for one in closing:
                    await cast("_Closable", one).close()
            except BaseException:
                for one in closing:
                    _leave_threads()
                    with contextlib.suppress(Exception):
                        async with asyncio.timeout(LEFT_TIMEOUT):
                            await cast("_Closable", one).close()
                _leave_threads()
                raise

        run_scenario(guarded())

    return run


def _leave_threads() -> None:
    """A thread of the loop that hangs is not waited for: not by who needs one, not when the loop ends."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))


class _Closable(Protocol):
    async def close(self) -> None: ...


async def close(closable: _Closable) -> None:
    """Close it. Raises: TimeoutError when it hangs."""
    async with asyncio.timeout(CLOSE_TIMEOUT):
        await closable.close()


def run_scenario(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run *coroutine* with a time limit; raise what went wrong in it or beside it."""
    problems: list[dict[str, Any]] = []

    async def bounded() -> _T:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )
        async with asyncio.timeout(SCENARIO_TIMEOUT):
            return await coroutine

    result = asyncio.run(bounded())
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
