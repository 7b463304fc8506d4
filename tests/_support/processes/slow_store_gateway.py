"""``tidegate`` with a journal whose disk obeys files: python slow_store_gateway.py DIRECTORY COMMAND...

While DIRECTORY/recover is there, opening the store goes on; while DIRECTORY/hang is there, no write returns.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from tidegate.cli import main
from tidegate_store_journal.store import JournalStore


def obey(directory: Path) -> None:
    opening, writing = JournalStore.open, JournalStore.write

    async def gone(name: str) -> None:
        while (directory / name).exists():
            await asyncio.sleep(0.01)

    async def open_slowly(self: JournalStore) -> Any:
        self._context.progress("replaying data files", 40, 100)
        await gone("recover")
        return await opening(self)

    async def write_slowly(self: JournalStore, batch: Any) -> None:
        await gone("hang")
        await writing(self, batch)

    JournalStore.open = open_slowly  # type: ignore[method-assign]
    JournalStore.write = write_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    obey(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
