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

import mqtt_raw
import pytest
from gateway_process import GatewayProcess
from wire import StompClient, frame

from tidegate.cli import main
from tidegate.config import parse_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugins import PluginHost
from tidegate.spi import StoreIOError, StoreLockedError, private_files

STORES = {
    "journal": '[store]\nplugin = "journal"\nlarge_message_min_size = "64kb"\n',
    "directories": '[store]\nplugin = "journal"\nper_destination = ["queue://q"]\n',
    "jdbc": '[store]\nplugin = "jdbc"\n',
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


@pytest.mark.usefixtures("no_umask")
def test_without_the_defence_others_could(tmp_path: Path) -> None:
    """The control: what is made without saying for whom is everybody's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").touch()
    assert wide(tmp_path / "data") == ["data 0777", "data/file 0666"]


async def exchange(gateway: Gateway) -> None:
    """Use what makes files with names: queues, a large body, a durable subscription."""
    port = int(gateway.addresses[0].rpartition(":")[2])
    client = await StompClient.connect(port, client_id="c")
    client.send(
        "SUBSCRIBE",
        id="d",
        destination="/topic/t",
        durable_subscription_name="d",
        ack="client",
        receipt="d",
    )
    await client.receipt("d")
    bodies = [("/queue/q", b"small"), ("/queue/q", b"x" * 200_000), ("/topic/t", b"kept")]
    for number, (destination, body) in enumerate(bodies):
        client.send("SEND", body, destination=destination, receipt=f"r{number}")
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


EVIL = (
    'a\n2026-01-01T00:00:00.000Z INFO    tidegate.access forged principal=admin\x1b[2J\u2028b" c=d'
)


def test_neither_a_hang_up_nor_a_client_s_name_reaches_further_than_it_may(tmp_path: Path) -> None:
    """One process: SIGHUP does not end it, and a client's id writes no line of the log."""
    with GatewayProcess(tmp_path) as gateway:
        assert gateway.process is not None
        for number in range(1, 4):
            gateway.process.send_signal(signal.SIGHUP)
            wait_until(lambda n=number: gateway.log.read_text().count("signal=SIGHUP") >= n)
        asyncio.run(use(gateway.stomp_port))
        asyncio.run(come_and_go(gateway.mqtt_port, EVIL))
        wait_until(lambda: "session ended client=" in gateway.log.read_text())
        assert gateway.process.poll() is None
        assert gateway.stop() == 0
        log = gateway.log.read_text()
    assert "forged" in log
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    assert all(line.isprintable() for line in log.split("\n"))


async def come_and_go(port: int, client_id: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(mqtt_raw.connect(client_id))
    await reader.readexactly(4)  # CONNACK
    writer.write(mqtt_raw.packet(0xF0))  # no packet of MQTT 3.1.1: the connection ends with a line
    await reader.read()
    writer.close()


@pytest.mark.parametrize("protocol", ["stomp", "mqtt"])
async def test_a_store_that_fails_tells_the_client_no_path(
    tmp_path: Path,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = PluginHost()
    listener = LISTENER.replace("stomp", protocol)
    text = f'[broker]\ndata_directory = "{tmp_path}/data"\n[store]\nplugin = "journal"\n{listener}'
    gateway = Gateway(resolve(parse_config(text), host), host)
    await gateway.start()

    async def fails(_batch: object) -> None:
        raise StoreIOError(f"{tmp_path}/data/journal/journal-1.data: [Errno 5] Input/output error")

    try:
        monkeypatch.setattr(gateway.broker.store, "write", fails)
        port = int(gateway.addresses[0].rpartition(":")[2])
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if protocol == "stomp":
                writer.write(frame("CONNECT", accept_version="1.2", host="h"))
                writer.write(frame("SEND", b"x", destination="/queue/q", receipt="r"))
            else:
                writer.write(mqtt_raw.connect("c", version=mqtt_raw.V5))
                writer.write(
                    mqtt_raw.publish("$queue/q", b"x", qos=1, packet_id=7, version=mqtt_raw.V5)
                )
            told = b""
            while StoreIOError.client_text.encode() not in told:
                piece = await reader.read(65_536)
                assert piece, told
                told += piece
            writer.close()
        monkeypatch.undo()
    finally:
        await gateway.stop()
    assert str(tmp_path).encode() not in told
    assert b"journal" not in told
    assert f"{tmp_path}/data/journal/journal-1.data" in caplog.text


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
