"""The helper that spreads ``make crash`` over the cores: what goes wrong in a job fails its test."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator

import pytest
from crash_crew import Crew, job


def square(number: int) -> int:
    return number * number


def process_id() -> int:
    return os.getpid()


def fails() -> None:
    raise ValueError("this one went wrong")


def warns() -> None:
    warnings.warn("something is old", DeprecationWarning, stacklevel=1)


def fails_in_a_thread() -> str:
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()
    return "as if nothing had been"


def dies() -> None:
    os._exit(3)


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


def test_results_come_in_the_order_of_the_jobs_from_other_processes(crew: Crew) -> None:
    crew.hand_out("one", [job(square, number) for number in range(20)])
    crew.hand_out("two", [job(process_id)])
    assert crew.results("two") != [os.getpid()]
    assert crew.results("one") == [number * number for number in range(20)]


def test_what_nobody_would_see_there_fails_the_job(crew: Crew) -> None:
    crew.hand_out("raises", [job(square, 2), job(fails)])
    crew.hand_out("warns", [job(warns)])
    crew.hand_out("thread", [job(fails_in_a_thread)])
    crew.hand_out("fine", [job(square, 3)])
    with pytest.raises(ValueError, match="this one went wrong"):
        crew.results("raises")
    with pytest.raises(DeprecationWarning, match="something is old"):
        crew.results("warns")
    with pytest.raises(AssertionError, match="exceptions that nobody saw"):
        crew.results("thread")
    assert crew.results("fine") == [9]
    crew.hand_out("dies", [job(dies)])
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        crew.results("dies")


def test_only_a_function_of_a_module_is_a_job() -> None:
    with pytest.raises(AssertionError, match="is not a module's"):
        job(lambda: 1)
