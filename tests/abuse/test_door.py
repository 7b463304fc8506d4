"""Around the gateway: what other users of its machine could read or change."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_process import GatewayProcess
from wire import StompClient

from tidegate.cli import main
from tidegate.config import parse_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugins import PluginHost
from tidegate.spi import StoreLockedError, private_files

STORES = {
    "journal": '[store]\nplugin = "journal"\nlarge_message_min_size = "64kb"\n',
    "directories": '[store]\nplugin = "journal"\nper_destination = ["queue://q"]\n',
    "jdbc": '[store]\nplugin = "jdbc"\n',
    "journaled": '[store]\nplugin = "journaled"\n',
}
LISTENER = '[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:0"\nallow_anonymous = true\n'


@pytest.fixture
def no_umask() -> Iterator[None]:
    """As carelessly as a service can be started: nothing is closed by the umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def wide(directory: Path) -> list[str]:
    """Everything below *directory*, and itself, that others may read, change or enter."""
    found: list[str] = []
    for path in [directory, *directory.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077:
            found.append(f"{path.relative_to(directory.parent)} {mode:04o}")
    return found


async def exchange(gateway: Gateway) -> None:
    """Use what makes files: queues, a large body, a durable subscription, a spool."""
    client = await StompClient.connect(int(gateway.addresses[0].rpartition(":")[2]))
    for number, body in enumerate((b"small", b"x" * 200_000)):
        client.send("SEND", body, destination="/queue/q", receipt=f"r{number}")
        await client.receipt(f"r{number}")
    client.close()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.usefixtures("no_umask")
async def test_others_can_read_nothing_that_the_gateway_writes(tmp_path: Path, store: str) -> None:
    directory = tmp_path / "above" / "data"
    host = PluginHost()
    text = f'[broker]\ndata_directory = "{directory}"\n{STORES[store]}{LISTENER}'
    gateway = Gateway(resolve(parse_config(text), host), host)
    await gateway.start()
    try:
        await exchange(gateway)
        running = wide(directory)
    finally:
        await gateway.stop()
    assert len(list(directory.rglob("*"))) > 1
    assert running == []
    assert wide(tmp_path / "above") == []


@pytest.mark.parametrize("store", ["journal", "jdbc"])
async def test_what_was_wide_before_is_told_with_what_to_do(
    tmp_path: Path,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)
    directory, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for path in (directory, elsewhere):
        path.mkdir()
        path.chmod(0o755)
    (elsewhere / "tidegate.db").touch()
    (elsewhere / "tidegate.db").chmod(0o644)
    place = {
        "journal": f'directory = "{elsewhere}"',
        "jdbc": f'url = "sqlite:///{elsewhere}/tidegate.db"',
    }[store]
    host = PluginHost()
    text = (
        f'[broker]\ndata_directory = "{directory}"\n'
        f'[store]\nplugin = "{store}"\n{place}\n{LISTENER}'
    )
    gateway = Gateway(resolve(parse_config(text), host), host)
    with caplog.at_level(logging.WARNING):
        await gateway.start()
        try:
            await exchange(gateway)
        finally:
            await gateway.stop()
    told = [record.getMessage() for record in caplog.records if record.name == "tidegate.files"]
    mended = elsewhere if store == "journal" else elsewhere / "tidegate.db"
    assert len(told) == 2
    assert told[0].endswith(f"run: chmod -R go-rwx {directory}")
    assert told[1].endswith(f"go-rwx {mended}")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755  # it is the operator's to narrow


async def test_a_standby_of_the_same_user_takes_over_what_is_private(tmp_path: Path) -> None:
    text = f'[broker]\ndata_directory = "{tmp_path}/data"\n[store]\nplugin = "journal"\n{LISTENER}'

    def make() -> Gateway:
        host = PluginHost()
        return Gateway(resolve(parse_config(text), host), host)

    first = make()
    await first.start()
    await exchange(first)
    with pytest.raises(StoreLockedError):
        await make().start()
    await first.stop()
    second = make()
    await second.start()
    try:
        assert second.recovered is not None
        assert [item.destination for item in second.recovered.destinations] == ["queue://q"]
    finally:
        await second.stop()


@pytest.mark.usefixtures("no_umask")
def test_nor_what_a_command_writes(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[broker]\ndata_directory = "{tmp_path}/data"\n[store]\nplugin = "jdbc"\n')
    assert main(["store", "create", "--config", str(config)]) == 0
    assert main(["store", "export", "--config", str(config), str(tmp_path / "export")]) == 0
    assert list((tmp_path / "export").iterdir())
    assert wide(tmp_path / "data") == []
    assert wide(tmp_path / "export") == []
    assert os.umask(0) == 0


def test_a_hang_up_does_not_end_the_gateway(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path).start()
    try:
        assert gateway.process is not None
        for number in range(1, 4):
            gateway.process.send_signal(signal.SIGHUP)
            wait_until(lambda n=number: gateway.log.read_text().count("signal=SIGHUP") >= n)
        assert gateway.process.poll() is None
        asyncio.run(use(gateway.stomp_port))
    finally:
        gateway.stop()


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come to that in a minute"
        time.sleep(0.01)


async def use(port: int) -> None:
    client = await StompClient.connect(port)
    client.send("SEND", b"x", destination="/queue/q", receipt="r")
    await client.receipt("r")
    client.close()
