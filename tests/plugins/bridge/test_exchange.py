"""Bridges and their rules come, change and go with a reload; what stays the same goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from two_gateways import produce, rule, take

from tidegate.config import load_config, resolve
from tidegate.gateway import Gateway
from tidegate.plugins import PluginHost
from tidegate.spi import RequestError
from tidegate.testing.embedded import EmbeddedGateway


class World:
    """A gateway that runs on a file, and another broker."""

    def __init__(self, directory: Path, target: EmbeddedGateway) -> None:
        self.directory, self.target = directory, target
        self.path = directory / "gw.toml"
        self.port = free_port()
        self.gateway: Any = None

    def bridge(self, name: str, *rules: str, more: str = "") -> str:
        return (
            f'[[extensions]]\nplugin = "bridge"\nname = "{name}"\nreconnect_min = "10ms"\n{more}\n'
            f'remote = "stomp://127.0.0.1:{self.target.stomp_port}"\n' + "\n".join(rules)
        )

    def write(self, *tables: str) -> None:
        head = (
            f'[broker]\ndata_directory = "{self.directory / "data"}"\n'
            f'[[listeners]]\nprotocol = "stomp"\nbind = "127.0.0.1:{self.port}"\n'
        )
        self.path.write_text(head + "\n".join(tables))

    async def reload(self, *tables: str, check_only: bool = False) -> tuple[list[str], list[str]]:
        """What changed, and what is left, in words."""
        self.write(*tables)
        found = await self.gateway.reload(check_only=check_only)
        return [change.what for change in found.changed], [change.key for change in found.left]

    def rows(self) -> dict[str, Any]:
        return {row.rule: row for item in self.gateway._residents for row in item.bridge_rows()}

    async def connected(self, *names: str) -> None:
        async with asyncio.timeout(60):
            while {name for name, row in self.rows().items() if row.server} != set(names):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(directory: Path, *tables: Any) -> AsyncIterator[World]:
    async with EmbeddedGateway() as target:
        world = World(directory, target)
        world.write(*[table(world) for table in tables])
        plugins = PluginHost()
        world.gateway = Gateway(resolve(load_config(world.path), plugins), plugins)
        await world.gateway.start()
        try:
            yield world
        finally:
            await world.gateway.stop()


OUT = rule("out", "out", "/queue/out", "queue://out")
IN = rule("in", "in", "/queue/in", "queue://in")
OTHER = rule("out", "out", "/queue/elsewhere", "queue://out")


@pytest.mark.long
async def test_rules_come_change_and_go_and_the_others_go_on(tmp_path: Path) -> None:
    async with running(tmp_path, lambda world: world.bridge("old", OUT)) as world:
        here, there = world.port, world.target.stomp_port
        await world.connected("out")
        await produce(here, "/queue/out", [b"1", b"end"])
        assert len(await take(there, "/queue/out", b"end")) == 2
        bridge = world.gateway._residents[0]
        wanted = world.bridge("old", OUT, IN)
        said = ["changed: bridge old: rule in added"]
        assert await world.reload(wanted, check_only=True) == (said, [])
        assert set(world.rows()) == {"out"}
        assert await world.reload(wanted) == (said, [])
        await world.connected("out", "in")
        assert world.rows()["out"].failures == 0  # it has noticed nothing
        await produce(there, "/queue/in", [b"end"])
        assert len(await take(here, "/queue/in", b"end")) == 1
        changed, _ = await world.reload(world.bridge("old", OTHER))
        assert changed == ["changed: bridge old: rule out changed, rule in removed"]
        await world.connected("out")
        await produce(here, "/queue/out", [b"2", b"end"])
        assert len(await take(there, "/queue/elsewhere", b"end")) == 2
        assert await world.reload(world.bridge("old", OTHER)) == ([], [])
        assert world.gateway._residents == [bridge]


@pytest.mark.long
async def test_bridges_come_and_go_and_begin_anew_with_other_options(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first = world.bridge("a", OUT)
        assert await world.reload(first) == (["added: bridge a"], [])
        await world.connected("out")
        (bridge,) = world.gateway._residents
        pid = bridge.pid
        second = world.bridge("a", OUT, more="window = 7")
        assert await world.reload(second) == (["changed: bridge a: window"], [])
        await world.connected("out")
        assert bridge.pid != pid
        await produce(world.port, "/queue/out", [b"%d" % number for number in range(50)])
        assert len(await take(world.target.stomp_port, "/queue/out", b"49")) == 50
        with pytest.raises(RequestError, match="bridge a already exists; give one"):
            await world.reload(world.bridge("a", OUT), world.bridge("a", IN))
        with pytest.raises(RequestError, match="letters"):
            await world.reload(world.bridge("a b", OUT))
        assert await world.reload(second) == ([], [])
        assert await world.reload() == (["removed: bridge a"], [])
        assert world.gateway._residents == []
        assert bridge.pid == 0
