"""A process with a store: writes one message after another and says what was confirmed.

    store_child.py DIRECTORY TAG load|step OPTIONS-AS-JSON

Lines on stdout: ``standby``, ``open LAST_SEQUENCE``, ``ok SEQUENCE`` …, ``lost PROBLEM``, ``failed TYPE``.
With *step* it writes one message for each line on stdin; ``unlock`` gives up the locks of a journal's directories,
as a file system does that does not hear this machine; ``close`` closes the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path

from tidegate.spi import (
    AddDestination,
    AddMessage,
    Message,
    MessageStore,
    StoreContext,
    StoreError,
    WriteBatch,
)
from tidegate_store_jdbc import JdbcOptions, JdbcStore
from tidegate_store_journal import JournalOptions, JournalStore
from tidegate_store_journaled import JournaledOptions, JournaledStore


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def unlock(directory: Path) -> None:
    """Give up all locks of files called ``lock`` in *directory*, which stay open."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = Path(os.readlink(f"/proc/self/fd/{name}"))
            if path.name == "lock" and path.is_relative_to(directory):
                fcntl.flock(int(name), fcntl.LOCK_UN)


async def main(directory: str, tag: str, mode: str, options: str) -> int:
    """Write until something fails or stdin ends."""

    def stands_by(owner: str) -> None:
        if owner:
            say("standby")

    context = StoreContext(
        Path(directory), tag, stands_by=stands_by, lost=lambda problem: say(f"lost {problem}")
    )
    values = json.loads(options)
    store: MessageStore
    if "use_journal" in values:
        store = JournaledStore(context, JournaledOptions(**values))
    elif "url" in values:
        store = JdbcStore(context, JdbcOptions(**values))
    else:
        store = JournalStore(context, JournalOptions(**values))
    state = await store.open()
    sequence = state.last_sequence
    say(f"open {sequence}")
    loop = asyncio.get_running_loop()
    if not state.destinations:
        await store.write(WriteBatch([AddDestination("queue://q", 1)]))
    while True:
        if mode == "step":
            line = await loop.run_in_executor(None, sys.stdin.readline)
            if line in ("", "close\n"):
                await store.close()
                say("closed")
                return 0
            if line == "unlock\n":
                unlock(Path(directory))
                say("unlocked")
                continue
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
