"""A plugin that calls ``sys.exit()``: an error with its name and the code, not a silent end."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.cli._run import run_until_signal
from tidegate.config import parse_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugin_exit import PluginExitError, exit_is_error
from tidegate.plugins import PluginHost, PluginKind
from tidegate.spi import (
    ConfigError,
    GatewayInfo,
    PluginContractError,
    PluginError,
    PluginLoadError,
)

INFO = 'tidegate_plugin = PluginInfo(summary="quits", spi_version=SPI_VERSION)\n'
HEAD = f"""
import sys
from dataclasses import dataclass
from tidegate.spi import SPI_VERSION, PluginInfo, hookimpl
{INFO}
@dataclass(frozen=True)
class Options:
    pass
"""
AT_IMPORT = "import sys\nsys.exit(3)\n"
AT_REGISTER = f"{HEAD}\n@hookimpl\ndef register_extension():\n    sys.exit()\n"
AT_CREATE = f"""{HEAD}
class Factory:
    options_type = Options
    def create(self, context, options=None):
        sys.exit("no licence")
@hookimpl
def register_extension():
    return Factory()
@hookimpl
def gateway_started(gateway):
    sys.exit(9)
"""


def test_at_import(site) -> None:
    site.add("quits", {"extension-quits": "quits"}, AT_IMPORT)
    with pytest.raises(PluginLoadError) as caught:
        site.host().extension("quits")
    assert caught.value.plugin == "extension-quits"
    assert "sys.exit(3)" in caught.value.problem
    assert "quits.py:2" in caught.value.problem
    rows = {row.name: row.problem for row in site.host().list_plugins(())}
    assert "sys.exit(3)" in rows["quits"]


def test_when_it_registers(site) -> None:
    site.add("quits", {"extension-quits": "quits"}, AT_REGISTER)
    with pytest.raises(PluginError, match=r"extension-quits: .*sys\.exit\(\)"):
        site.host().extension("quits")


def test_when_it_makes_its_object_and_when_it_is_told_of_the_start(
    site, caplog: pytest.LogCaptureFixture
) -> None:
    site.add("quits", {"extension-quits": "quits"}, AT_CREATE)
    host = site.host()
    factory = host.extension("quits")
    with pytest.raises(PluginExitError) as caught:
        factory.create(None)
    assert (caught.value.plugin, caught.value.code) == ("extension-quits", "no licence")
    assert host.installed_names(PluginKind.EXTENSION) == ["quits"]
    host.announce_started(GatewayInfo("g", "1", ()))
    assert "sys.exit(9)" in caplog.text


async def test_when_it_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = PluginHost()
    text = f'[broker]\ndata_directory = "{tmp_path}/data"\n[store]\nplugin = "jdbc"\n'
    gateway = Gateway(resolve(parse_config(text), host), host)

    async def quits(self: object) -> None:
        sys.exit(4)

    monkeypatch.setattr("tidegate_store_jdbc._store.JdbcStore.open", quits)
    with pytest.raises(PluginExitError, match=r"store-jdbc: it called sys\.exit\(4\)") as caught:
        await gateway.start()
    assert caught.value.code == 4


RAISES = f"""
from dataclasses import dataclass
from tidegate.spi import SPI_VERSION, ConfigError, PluginInfo, hookimpl
{INFO}
@dataclass(frozen=True)
class Options:
    what: str = ""
class Door:
    def __init__(self, what):
        self.what = what
    def authorize(self, identity, action, destination):
        raise NotImplementedError
    async def start(self, changed):
        if self.what == "on purpose":
            raise ConfigError("the file is empty")
        if self.what == "of the system":
            open("/nonexistent/file")
        {{}}["users"]
    async def stop(self):
        pass
class Factory:
    options_type = Options
    def create(self, options):
        return Door(options.what)
@hookimpl
def register_extension():
    return Factory()
"""


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        (
            "",
            PluginContractError,
            r"plugin extension-door: start\(\) failed: KeyError: 'users' \(.*doors\.py:\d+\)",
        ),
        ("on purpose", ConfigError, "the file is empty"),
        ("of the system", FileNotFoundError, "/nonexistent/file"),
    ],
)
async def test_what_it_did_not_mean_to_raise_when_it_begins_names_it(
    site,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    what: str,
    kind: type[Exception],
    text: str,
) -> None:
    site.add("doors", {"extension-door": "doors"}, RAISES)
    host = PluginHost()  # which sees what is installed besides
    config = f'[broker]\ndata_directory = "{tmp_path}/data"\n[[extensions]]\nplugin = "door"\nwhat = "{what}"\n'
    gateway = Gateway(resolve(parse_config(config), host), host)
    with pytest.raises(kind, match=text):
        await gateway.start()
    await gateway.stop()
    assert ("Traceback" in caplog.text) == (what == "")


async def test_a_fault_of_the_hosts_is_no_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = PluginHost()
    gateway = Gateway(
        resolve(parse_config(f'[broker]\ndata_directory = "{tmp_path}/data"\n'), host), host
    )
    monkeypatch.setattr("tidegate.broker.core.BrokerCore.start", lambda self: asyncio.sleep("x"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await gateway.start()
    await gateway.stop()


EXITS = (SystemExit(5), KeyboardInterrupt())


class Running:
    """A gateway that runs *work* beside itself."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self.work = work
        self.calls: list[str] = []
        self.tasks: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        self.tasks.append(asyncio.ensure_future(self.work()))

    async def wait(self) -> None:
        await asyncio.wait(self.tasks)
        await asyncio.sleep(0)
        self.calls.append("still there")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def reload(self) -> None: ...


def made(gateway: Running) -> Callable[[], Awaitable[Running]]:
    async def make() -> Running:
        return gateway

    return make


@pytest.mark.parametrize("error", EXITS, ids=["exit", "interrupt"])
def test_a_task_of_a_plugins_own_ends_alone_as_with_any_other_error(
    site, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    source = "async def work(error):\n    raise error\n"
    site.add("quits", {"sink-quits": "quits"}, source)
    quits: Any = importlib.import_module("quits")
    gateway = Running(lambda: quits.work(error))
    run_until_signal(made(gateway), lambda _gateway: None)
    assert gateway.calls == ["still there", "stop"]
    (told,) = [record.getMessage() for record in caplog.records if record.name == "tidegate.run"]
    assert "the gateway keeps running: plugin quits: it " in told
    assert "quits.py:2" in told
    gateway.tasks.clear()
    gc.collect()  # asyncio tells of the task that nobody asked, here and not in another test


def test_an_exit_that_the_loop_was_asked_to_call_has_no_frame_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 9)

    gateway = Running(work)
    run_until_signal(made(gateway), lambda _gateway: None)
    assert gateway.calls == ["still there", "stop"]
    assert "plugin unknown (called from the event loop): it called sys.exit(9)" in caplog.text


@pytest.mark.parametrize("error", EXITS, ids=["exit", "interrupt"])
def test_where_a_task_of_the_hosts_is_hit_the_gateway_stops_cleanly(
    site, error: BaseException
) -> None:
    source = "def work(error):\n    raise error\n"
    site.add("quits", {"sink-quits": "quits"}, source)
    quits: Any = importlib.import_module("quits")
    host: dict[str, Any] = {"__name__": "tidegate.somewhere"}
    exec("async def task(work, error):\n    work(error)\n", host)
    gateway = Running(lambda: host["task"](quits.work, error))
    with pytest.raises(PluginExitError, match="plugin quits: it ") as caught:
        run_until_signal(made(gateway), lambda _gateway: None)
    assert gateway.calls[-1] == "stop"
    assert caught.value.__cause__ is error
    gateway.tasks.clear()
    gc.collect()


@pytest.mark.parametrize("when", ["start", "wait"])
def test_what_the_gateway_itself_runs_into_is_told(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def quits(*_gateway: object) -> None:
        await asyncio.create_task(quits_now())

    async def quits_now() -> None:
        sys.exit(5)

    monkeypatch.setattr(Running, when, quits)
    with pytest.raises(PluginExitError, match=r"sys\.exit\(5\)"):
        run_until_signal(made(Running(lambda: asyncio.sleep(0))), lambda _gateway: None)
    gc.collect()


def test_the_broker_outlives_an_exit_wherever_it_outlives_an_exception() -> None:
    broker = Path(tidegate.__file__).with_name("broker")
    narrow = [
        path.name
        for path in sorted(broker.rglob("*.py"))
        if "except Exception" in path.read_text(encoding="utf-8")
    ]
    assert not narrow, "catch tidegate.plugin_exit.FAILURES: SystemExit passes by Exception"


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), exit_is_error("x"):
        raise KeyError("k")
