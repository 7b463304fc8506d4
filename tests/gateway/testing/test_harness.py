"""The kits find plugins, say what is missing, and let no problem on the event loop pass."""

import asyncio
from typing import Any

import pytest

from tidegate.testing._harness import Scenarios, plugin_factory, run_scenario


class Opened:
    is_closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_closed = True


class Sample(Scenarios):
    async def test_passes(self, value: int) -> None:
        await asyncio.sleep(0)
        assert value == 1

    async def test_hangs(self, opened: Opened) -> None:
        await asyncio.sleep(60)

    async def test_fails(self, value: int, *, opened: Opened) -> None:
        assert value == 1


#: What the kit's tests are for pytest.
sample: Any = Sample()


def test_a_scenario_runs_on_a_loop_of_its_own() -> None:
    sample.test_passes(1)
    with pytest.raises(AssertionError):
        sample.test_passes(2)


def test_what_a_scenario_left_open_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, failed = Opened(), Opened()
    sample.test_fails(1, opened=opened)
    assert opened.is_closed
    with pytest.raises(AssertionError):
        sample.test_fails(2, opened=failed)
    assert failed.is_closed

    monkeypatch.setattr("tidegate.testing._harness.SCENARIO_TIMEOUT", 0.01)
    late = Opened()
    with pytest.raises(TimeoutError):
        sample.test_hangs(late)
    assert late.is_closed


def test_an_error_in_a_callback_fails_the_scenario() -> None:
    def fail() -> None:
        raise ValueError("nobody awaits this")

    async def body() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="unhandled on the event loop") as caught:
        run_scenario(body())
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_scenario_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.testing._harness.SCENARIO_TIMEOUT", 0.01)
    with pytest.raises(TimeoutError):
        run_scenario(asyncio.sleep(60))


def test_a_scenario_gives_its_result() -> None:
    assert run_scenario(asyncio.sleep(0, "result")) == "result"


def test_an_unknown_plugin_is_named_with_those_installed() -> None:
    with pytest.raises(pytest.UsageError, match=r"no entry point 'cursor-nope'.*cursor-file"):
        plugin_factory("cursor-nope", "register_cursor")


def test_a_plugin_of_another_kind_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"does not implement register_message_store"):
        plugin_factory("cursor-vm", "register_message_store")
