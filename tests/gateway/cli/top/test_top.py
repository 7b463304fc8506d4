"""`tidegate top`: what the screen shows, what its keys do, and that it outlives the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from operating import Command
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Sparkline, Static, TabbedContent
from wire import StompClient

from tidegate.cli._exit import ExitCode
from tidegate.cli.groups._asking import connected
from tidegate.cli.top.reading import Reader, Snapshot, Wanted, snapshot
from tidegate.cli.top.screen import Top
from tidegate.spi import ClientError
from tidegate.spi.operate import ConnectionSort, DestinationSort, Traffic
from tidegate.testing.embedded import EmbeddedGateway


class Scripted:
    """Answers with what it is told, and writes down what was asked."""

    def __init__(self, found: Snapshot) -> None:
        self.found: Snapshot | Exception = found
        self.asked: list[Wanted] = []
        self.is_closed = False

    def read(self, wanted: Wanted) -> Snapshot:
        self.asked.append(wanted)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
async def busy(tmp_path: Path) -> Snapshot:
    """A gateway with two queues, as it was."""
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n')

    def read() -> Snapshot:
        with connected(config) as client:
            return snapshot(client, Wanted())

    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        for number, name in enumerate(("few", "many", "many")):
            client.send("SEND", b"x", destination=f"/queue/{name}", receipt=str(number))
            await client.receipt(str(number))
        found = await asyncio.to_thread(read)
        await client.aclose()
    return found


def rows(app: Top, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


def text(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


async def pressed(pilot: Pilot[None], *keys: str) -> None:
    """Press and wait for what that asks for."""
    await pilot.press(*keys)
    await pilot.pause()
    app = pilot.app
    assert isinstance(app, Top)
    while app._is_reading:
        await asyncio.sleep(0)
    await pilot.pause()


async def test_it_shows_what_the_gateway_says(busy: Snapshot) -> None:
    source = Scripted(busy)
    app = Top(source, 0)
    async with app.run_test(size=(160, 40)) as pilot:
        await pressed(pilot)
        assert [row[:2] for row in rows(app, "destinations")] == [
            ["queue://many", "2"],
            ["queue://few", "1"],
        ]
        ((number, user, *_),) = rows(app, "connections")
        assert (number, user) == (str(busy.connections[0].number), "anonymous")
        assert len(rows(app, "limits")) == len(busy.limits) > 5
        assert rows(app, "sinks") == []
        assert "running" in text(app, "head")
        assert "backlog 3" in text(app, "head")
        assert text(app, "problem") == ""
    assert source.is_closed


@pytest.mark.long
@pytest.mark.parametrize("size", [(160, 40), (80, 24), (60, 15)])
async def test_all_of_it_is_on_the_screen_whichever_list_is_shown(
    busy: Snapshot, size: tuple[int, int]
) -> None:
    app = Top(Scripted(busy), 0)
    async with app.run_test(size=size) as pilot:
        await pressed(pilot)
        for name in ("destinations", "connections", "limits", "sinks", "destinations"):
            table = app.query_one(f"#{name}", DataTable)
            assert app.focused is table
            assert (app.screen.max_scroll_y, app.screen.scroll_offset.y) == (0, 0)
            for seen in (app.query_one("#head"), app.query_one("#published"), table):
                assert seen.region.height >= 2
                assert app.screen.region.contains_region(seen.region)
            await pressed(pilot, "t")
        assert app.query_one("#published", Sparkline).border_title == "published a second"


async def test_each_look_adds_to_the_lines_and_replaces_the_lists(busy: Snapshot) -> None:
    source = Scripted(busy)
    app = Top(source, 0)
    async with app.run_test() as pilot:
        await pressed(pilot)
        more = msgspec.structs.replace(busy.overview, published=Traffic(100, 42.0))
        source.found = msgspec.structs.replace(busy, overview=more, destinations=())
        await pressed(pilot, "r")
        data = app.query_one("#published", Sparkline).data
        assert data is not None
        assert list(data)[-1] == 42.0
        assert rows(app, "destinations") == []
        assert len(source.asked) == 2


async def test_keys_sort_filter_and_pause(busy: Snapshot) -> None:
    source = Scripted(busy)
    app = Top(source, 0)
    async with app.run_test() as pilot:
        await pressed(pilot)
        assert source.asked[-1].destinations is DestinationSort.PENDING
        before = list(DestinationSort).index(DestinationSort.PENDING)
        await pressed(pilot, "s")
        following = list(DestinationSort)[(before + 1) % len(DestinationSort)]
        assert source.asked[-1].destinations is following
        app.query_one(TabbedContent).active = "tab-connections"
        await pressed(pilot, "s")
        assert source.asked[-1].destinations is following
        assert source.asked[-1].connections is not ConnectionSort.RATE
        await pressed(pilot, "slash")
        assert app.focused is app.query_one("#filter", Input)
        await pressed(pilot, *"few", "enter")
        assert source.asked[-1].match == "few"
        assert app.focused is app.query_one("#connections", DataTable)
        await pressed(pilot, "escape")
        assert source.asked[-1].match == ""
        await pressed(pilot, "p")
        assert "paused" in text(app, "problem")
        asked = len(source.asked)
        app._tick()
        await pressed(pilot)
        assert len(source.asked) == asked
        await pressed(pilot, "p")
        app._tick()
        await pressed(pilot)
        assert len(source.asked) == asked + 1


async def test_a_gateway_that_goes_is_said_and_one_that_comes_back_is_shown(
    busy: Snapshot,
) -> None:
    source = Scripted(busy)
    app = Top(source, 0)
    async with app.run_test() as pilot:
        source.found = ClientError("no gateway is running there\x1b[2J")
        await pressed(pilot, "r")
        assert "no gateway is running there" in text(app, "problem")
        assert "\x1b" not in text(app, "problem")
        source.found = busy
        await pressed(pilot, "r")
        assert text(app, "problem") == ""
        assert len(rows(app, "destinations")) == 2


async def test_the_reader_asks_a_real_gateway_and_again_after_it_was_away(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[broker]\ndata_directory = "{tmp_path}"\n')
    reader = Reader(config)
    with pytest.raises(ClientError, match="no gateway is running"):
        reader.read(Wanted())
    async with EmbeddedGateway(data_directory=tmp_path) as gateway:
        first = await asyncio.to_thread(reader.read, Wanted())
        await gateway.restart()
        with pytest.raises((ClientError, OSError)):
            await asyncio.to_thread(reader.read, Wanted())
        second = await asyncio.to_thread(reader.read, Wanted())
        assert first.overview.store_id == second.overview.store_id
        reader.close()


async def test_one_look_is_printed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path, capsys)
    code, shown = await command("top")
    assert (code, "no gateway is running" in shown) == (ExitCode.BROKER, True)
    async with EmbeddedGateway(data_directory=tmp_path):
        code, shown = await command("top", "--json")
        assert code == 0
        found: Any = json.loads(shown)
        assert set(found) == {"overview", "destinations", "connections", "limits", "sinks"}
        assert found["overview"]["state"] == "running"
