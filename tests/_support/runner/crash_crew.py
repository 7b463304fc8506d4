"""Spreads the work of ``make crash`` over the cores, in processes of their own.

A test that only computes names the jobs that it waits for, and judges what they return::

    def jobs_of(profile):                       # gets the test's parameters
        return [job(schedule, profile.name, seed) for seed in range(3)]

    @pytest.mark.crew(jobs=jobs_of)
    def test_...(profile, results): ...         # results: one item for each job, in their order

The jobs of all selected tests are handed out before the first test runs, and tests with jobs run
last: so what mostly waits (gateways that are killed again and again) goes on beside them.

A job is a function of a module and values: the function runs in another process, which imports the
module by its path. What it raises, the test raises; warnings, and exceptions in threads or in
destructors, which nobody would see there, fail the job.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import logging
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from _pytest.nodeid import NodeId

T = TypeVar("T")

#: ``make crash LONG=1``: everything in the numbers that would take half an hour.
LONG: Final = os.environ.get("TIDEGATE_CRASH_LONG") == "1"
#: More do not help: the longest job is what counts then.
_PROCESSES_MAX: Final = 8
#: Jobs give way to the gateways that are tested meanwhile.
_NICENESS: Final = 5


def amount(usual: T, long: T) -> T:
    """*usual*, or *long* with ``make crash LONG=1``."""
    return long if LONG else usual


class Job(NamedTuple):
    """A call of *function* of the module at *path*."""

    path: str
    function: str
    arguments: tuple[Any, ...]


def job(function: Callable[..., Any], *arguments: Any) -> Job:
    """A call of *function*, which must be one of a module. *arguments* travel by pickle."""
    assert function.__qualname__ == function.__name__, f"{function} is not a module's"
    return Job(function.__code__.co_filename, function.__name__, arguments)


# ------------------------------------------------------------------------------ in the test process

_CREW: Final = pytest.StashKey["Crew"]()


class Crew:
    """The processes, and what they were given to do, by test."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._futures: dict[str, list[Future[tuple[Any, float]]]] = {}
        #: How long the jobs of each test took together.
        self.seconds: dict[str, float] = {}

    def hand_out(self, test: str, jobs: Iterable[Job]) -> None:
        """Begin with *jobs* as soon as those before them are done."""
        if self._pool is None:
            processes = min(len(os.sched_getaffinity(0)), _PROCESSES_MAX)
            context = multiprocessing.get_context("spawn")  # threads may be running here
            self._pool = ProcessPoolExecutor(processes, context, _begin)
        self._futures[test] = [self._pool.submit(_work, item) for item in jobs]

    def results(self, test: str) -> list[Any]:
        """Wait for the jobs of *test*. Raises: what one of them raised."""
        done = [future.result() for future in self._futures.pop(test)]
        self.seconds[test] = sum(seconds for _, seconds in done)
        return [result for result, _ in done]

    def dismiss(self) -> None:
        """End the processes, whatever they are doing."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            self._pool = None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CREW] = Crew()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules with jobs come last (after the selection by marks); first what starts Java machines:
    it takes longest, and would be what is waited for at the end.

    And the groups of pytest-xdist 3.8 are put in force: it sets a name that pytest 9.2 does not read any more, so that
    what takes minutes for a whole group would be done in each process.
    """
    if getattr(config.option, "loadgroup", False):
        for item in items:
            group = item.get_closest_marker("xdist_group")
            if group is not None and "@" not in item.nodeid:
                item._id = NodeId.parse(f"{item.nodeid}@{group.args[0]}")
    busy = {item.path for item in items if item.get_closest_marker("crew")}
    items.sort(key=lambda item: (item.path in busy, item.get_closest_marker("spark") is None))


def pytest_collection_finish(session: pytest.Session) -> None:
    # Each process of pytest-xdist would give all jobs to a crew of its own: see `results`.
    if session.config.option.collectonly or hasattr(session.config, "workerinput"):
        return
    for item in session.items:
        mark = item.get_closest_marker("crew")
        if mark is not None and isinstance(item, pytest.Function):
            parameters: Mapping[str, Any] = (
                item.callspec.params if hasattr(item, "callspec") else {}
            )
            session.config.stash[_CREW].hand_out(item.nodeid, mark.kwargs["jobs"](**parameters))


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_CREW].dismiss()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """With ``--durations``: what the jobs took, because the tests only waited."""
    seconds = config.stash[_CREW].seconds
    if seconds and config.option.durations is not None:
        terminalreporter.section(f"jobs in other processes: {sum(seconds.values()):.0f} s")
        for test, spent in sorted(seconds.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{spent:.2f}s {test}")


@pytest.fixture
def results(request: pytest.FixtureRequest) -> list[Any]:
    """What the jobs of this test returned."""
    if hasattr(request.config, "workerinput"):
        pytest.fail("the jobs of this test are spread over the cores already: run it without -n")
    return request.config.stash[_CREW].results(request.node.nodeid)


# -------------------------------------------------------------------------------- in the processes

_unseen: Final[list[str]] = []


def _begin() -> None:
    os.nice(_NICENESS)
    faulthandler.enable()
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)  # every power cut is logged as the error that it is
    sys.unraisablehook = lambda seen: _unseen.append(f"{seen.object!r}: {seen.exc_value!r}")
    threading.excepthook = lambda seen: _unseen.append(f"{seen.thread!r}: {seen.exc_value!r}")


def _work(item: Job) -> tuple[Any, float]:
    begin = time.monotonic()
    result = getattr(_module_at(Path(item.path)), item.function)(*item.arguments)
    gc.collect()
    if _unseen:
        seen = "; ".join(_unseen)
        _unseen.clear()
        raise AssertionError(f"{item}: exceptions that nobody saw: {seen}")
    return result, time.monotonic() - begin


def _module_at(path: Path) -> ModuleType:
    module = sys.modules.get(path.stem)
    if module is not None and module.__file__ == str(path):
        return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
