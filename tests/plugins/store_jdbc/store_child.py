"""A process with a store: writes one message after another and says what was confirmed.

    store_child.py DIRECTORY TAG load|step OPTIONS-AS-JSON

Lines on stdout: ``standby``, ``open LAST_SEQUENCE``, ``ok SEQUENCE`` …, ``failed TYPE``. With *step*
it writes one message for each line on stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tidegate.spi import AddDestination, AddMessage, Message, StoreContext, StoreError, WriteBatch
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_journaled import JournaledOptions, JournaledStore


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(directory: str, tag: str, mode: str, options: str) -> int:
    """Write until something fails or stdin ends."""

    def progress(what: str, _done: int, _total: int) -> None:
        if "waiting" in what:
            say("standby")

    context = StoreContext(Path(directory), tag, progress=progress)
    values = json.loads(options)
    store = (
        JournaledStore(context, JournaledOptions(**values))
        if "use_journal" in values
        else JdbcStore(context, JdbcOptions(**values))
    )
    state = await store.open()
    sequence = state.last_sequence
    say(f"open {sequence}")
    loop = asyncio.get_running_loop()
    if not state.destinations:
        await store.write(WriteBatch([AddDestination("queue://q", 1)]))
    while True:
        if mode == "step" and not await loop.run_in_executor(None, sys.stdin.readline):
            await store.close()
            return 0
        sequence += 1
        try:
            message = Message("queue://q", f"{tag} {sequence}".encode())
            await store.write(WriteBatch([AddMessage(sequence, message, (1,))]))
        except StoreError as error:
            say(f"failed {type(error).__name__}: {error}")
            await store.close()
            return 3
        say(f"ok {sequence}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
