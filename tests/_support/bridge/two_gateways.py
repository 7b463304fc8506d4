"""Two gateways with a bridge between them: `old` is the other broker, `new` has the bridge."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path

from gateway_process import GatewayProcess
from wire import Frame, StompClient

LOST = (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError)


def rule(name: str, direction: str, remote: str, local: str, more: str = "") -> str:
    """TOML of one rule."""
    return (
        f'[[extensions.rules]]\nname = "{name}"\ndirection = "{direction}"\n'
        f'remote = "{remote}"\nlocal = "{local}"\n{more}\n'
    )


class Pair:
    """Args: rules: TOML; options: further ones of the bridge; old: TOML of the other gateway, its listener with TLS first."""

    def __init__(
        self, directory: Path, scheme: str, rules: Iterable[str], options: str = "", old: str = ""
    ) -> None:
        (directory / "old").mkdir()
        (directory / "new").mkdir()
        self.old = GatewayProcess(directory / "old", extra=old)
        port: object = self.old.stomp_port if scheme == "stomp" else self.old.mqtt_port
        if scheme.endswith("s"):
            port = tomllib.loads(old)["listeners"][0]["bind"].rpartition(":")[2]
        self.new = GatewayProcess(
            directory / "new",
            extra=f'[[extensions]]\nplugin = "bridge"\nname = "moving"\nremote = "{scheme}://localhost:{port}"\n'
            f'reconnect_min = "50ms"\nreconnect_max = "500ms"\n{options}\n' + "\n".join(rules),
        )

    def __enter__(self) -> Pair:
        self.old.start()
        self.new.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.new.__exit__()
        self.old.__exit__()

    def kill_bridge(self) -> None:
        """SIGKILL for the bridge's process, which the gateway starts again."""
        children = Path(f"/proc/{self.new.pid}/task/{self.new.pid}/children").read_text().split()
        for child in children:
            if b"tidegate_bridge" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)

    def said(self, text: str, count: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until the gateway with the bridge has said *text* so often in its log."""
        deadline = time.monotonic() + timeout_s
        while self.new.log.read_text(errors="replace").count(text) < count:
            assert time.monotonic() < deadline, self.new.tail()
            time.sleep(0.02)


async def produce(port: int, destination: str, bodies: Iterable[bytes], **headers: str) -> None:
    """Send all; returns when they are confirmed."""
    client = await StompClient.connect(port)
    for body in bodies:
        client.send("SEND", body, destination=destination, **headers)
        await client.writer.drain()
    client.send("SEND", b"", destination="/queue/mark", receipt="all")
    await client.receipt("all")
    await client.aclose()


async def take(port: int, destination: str, last: bytes) -> list[Frame]:
    """Consume until the body *last* has come."""
    client = await StompClient.connect(port)
    client.send("SUBSCRIBE", destination=destination, id="1", ack="auto")
    found: list[Frame] = []
    while not found or found[-1].body != last:
        found.append(await client.receive())
    await client.aclose()
    return found
