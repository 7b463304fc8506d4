"""Runs the gateway, and writes down how much too late its loop comes back: ticking.py FILE run --config …

SIGUSR2: FILE gets what was found since the last one, one number (seconds) a line.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from benchkit.sink.log import tick
from tidegate import gateway
from tidegate.cli import main

#: Seconds between two looks: few enough to cost nothing.
INTERVAL: Final = 0.005


def _install(path: Path) -> None:
    start = gateway.Gateway.start

    async def ticking(self: gateway.Gateway) -> None:
        stalls: list[float] = []
        loop = asyncio.get_running_loop()

        def write() -> None:
            found, stalls[:] = list(stalls), []
            made = path.with_suffix(".new")
            made.write_text("\n".join(map(str, found)))
            os.replace(made, path)

        loop.add_signal_handler(signal.SIGUSR2, write)
        self.ticker = asyncio.create_task(tick(stalls, INTERVAL))  # type: ignore[attr-defined]
        await start(self)

    gateway.Gateway.start = ticking


if __name__ == "__main__":
    _install(Path(sys.argv.pop(1)))
    sys.exit(main())
