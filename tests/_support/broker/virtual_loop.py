"""A loop of virtual time: when nothing is left to do it jumps to the next timer.

Back-off and expiry take no real time, and a test that waits for something impossible fails at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits for a timer: tells the loop that its time has come."""

    jumped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "the test waits for something that will never happen"
        self.jumped += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on which time passes only when there is nothing else to do.

    What others do in a thread is done at once, so that every run of a test is the same.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.jumped

    def run_in_executor(  # type: ignore[override]  # narrower than the loop's own
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def set_default_executor(self, executor: object) -> None:
        """It has none, whose threads the end of the loop would wait for."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine on virtual time; an exception nobody handled fails it."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        result = runner.run(main)
    assert not problems, problems
    return result
