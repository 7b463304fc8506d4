"""Signals and the life of a gateway. The signals are real; the gateway is as small as can be."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.cli._run import (
    STOP_SIGNALS,
    raise_descriptor_limit,
    run_until_signal,
    serve,
    warn_of_configuration,
    write_lines,
)
from tidegate.config import load_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import private_files


class Gateway:
    """Notes what is asked of it; ``block`` is the step that never ends by itself."""

    def __init__(self, block: str = "wait", error: Exception | None = None) -> None:
        self.block = block
        self.error = error
        self.calls: list[str] = []
        self.reached = asyncio.Event()
        self.reloaded = asyncio.Event()

    async def _step(self, name: str) -> None:
        self.calls.append(name)
        if self.block == name:
            self.reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.calls.append(f"{name} cancelled")
                raise

    async def start(self) -> None:
        await self._step("start")
        if self.error is not None:
            raise self.error

    async def wait(self) -> None:
        await self._step("wait")

    async def stop(self) -> None:
        await self._step("stop")

    async def reload(self) -> None:
        self.calls.append("reload")
        self.reloaded.set()
        if self.calls.count("reload") == 1:
            raise ValueError("a bug in a plugin")


async def _signal_when_reached(gateway: Gateway, number: signal.Signals) -> None:
    await gateway.reached.wait()
    os.kill(os.getpid(), number)


async def _serve_and_signal(
    gateway: Gateway, started: Callable[[], None], number: signal.Signals
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(gateway, started))
        group.create_task(_signal_when_reached(gateway, number))


@pytest.fixture(autouse=True)
def _handlers_are_restored():
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_a_signal_stops_a_running_gateway(number: signal.Signals) -> None:
    async def run() -> list[str]:
        gateway = Gateway()
        await _serve_and_signal(gateway, lambda: gateway.calls.append("started"), number)
        return gateway.calls

    assert await run() == ["start", "started", "wait", "wait cancelled", "stop"]


async def test_a_signal_during_recovery_ends_the_start() -> None:
    async def run() -> list[str]:
        gateway = Gateway(block="start")
        await _serve_and_signal(gateway, lambda: gateway.calls.append("started"), signal.SIGTERM)
        return gateway.calls

    assert await run() == ["start", "start cancelled"]


async def test_after_the_first_signal_the_second_one_ends_the_process() -> None:
    async def run() -> list[object]:
        gateway = Gateway(block="stop")
        serving = asyncio.create_task(serve(gateway, lambda: os.kill(os.getpid(), signal.SIGINT)))
        await gateway.reached.wait()
        handlers: list[object] = [signal.getsignal(number) for number in STOP_SIGNALS]
        serving.cancel()
        await asyncio.wait((serving,))
        return handlers

    assert await run() == [signal.SIG_DFL, signal.SIG_DFL]


async def test_a_gateway_that_ends_by_itself_is_stopped_too() -> None:
    async def run() -> list[str]:
        gateway = Gateway(block="")
        await serve(gateway, lambda: None)
        return gateway.calls

    assert await run() == ["start", "wait", "stop"]


async def test_an_error_of_the_start_is_the_callers() -> None:
    with pytest.raises(OSError, match="no"):
        await serve(Gateway(error=OSError("no")), lambda: pytest.fail("it did not start"))


def test_the_gateway_is_made_on_the_loop_that_runs_it() -> None:
    seen: list[str] = []

    async def make() -> Gateway:
        seen.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return Gateway(block="")

    run_until_signal(make, lambda gateway: seen.append(type(gateway).__name__))
    assert seen == ["uvloop", "Gateway"]


# ------------------------------------------------------------------------------ descriptors


@pytest.fixture
def _limit_is_restored():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_limit_is_restored")
def test_the_soft_limit_of_descriptors_is_raised_to_what_the_connections_need(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    raise_descriptor_limit(200)  # a socket and four files of large messages each
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1512, hard)
    raise_descriptor_limit(100)  # never lowered
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1512, hard)
    assert caplog.records == []


def test_a_hard_limit_that_is_too_low_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: asked.append(limits))
    with caplog.at_level(logging.WARNING, "tidegate.run"):
        raise_descriptor_limit(10_000)
    assert asked == [(4096, 4096)]
    assert "broker.connections_max" in caplog.text


def test_a_hard_limit_that_is_enough_for_the_sockets_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 2000))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: asked.append(limits))
    raise_descriptor_limit(1000)
    assert asked == [(2000, 2000)]
    assert caplog.records == []


def test_lines_are_written_at_once() -> None:
    written: list[str] = []
    write_lines(["a", "b"], written.append)
    assert written == ["a\nb\n"]


@pytest.mark.parametrize("block", ["start", "wait"])
async def test_sighup_reloads_and_never_ends_the_process(
    block: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(block)

    async def hang_up_twice() -> None:
        await gateway.reached.wait()
        for _ in range(2):  # the first reload fails, which is no reason not to try again
            gateway.reloaded.clear()
            os.kill(os.getpid(), signal.SIGHUP)
            await gateway.reloaded.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.TaskGroup() as group:
        group.create_task(serve(gateway, lambda: None))
        group.create_task(hang_up_twice())
    assert gateway.calls.count("reload") == 2
    assert "reload=failed" in caplog.text
    os.kill(os.getpid(), signal.SIGHUP)  # while the process ends
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("bits", "secret", "says"),
    [
        (0o600, True, ""),
        (0o644, False, ""),
        (0o644, True, "everybody on this machine can read it (mode 0644); run: chmod go-rwx"),
        (0o640, True, "its group on this machine can read it"),
        (0o664, False, "its group on this machine can change it (mode 0664); run: chmod go-w"),
    ],
)
def test_a_configuration_that_others_can_change_or_read_the_secrets_of_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bits: int,
    secret: bool,
    says: str,
) -> None:
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    user = "me:hunter2@" if secret else ""
    file = tmp_path / "tidegate.toml"
    file.write_text(f'[store]\nplugin = "jdbc"\nurl = "postgresql://{user}db/x"\n')
    file.chmod(bits)
    warn_of_configuration(file, resolve(load_config(file), PluginHost()))
    assert says in caplog.text
    assert bool(caplog.records) is bool(says)
