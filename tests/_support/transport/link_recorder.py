"""A transport's handler that records what happens, for tests over real sockets."""

import asyncio
import contextlib
from typing import Any

from tidegate.spi import Stranger

TIMEOUT_S = 60  # bounds a hanging test, nothing waits for it


class Recorder:
    """A handler that records what happens and answers with what *reply* returns."""

    def __init__(self, reply=lambda data: None):
        self.link: Any = None
        self.reply, self.data, self.events = reply, b"", []
        self.changed = asyncio.Event()

    def note(self, event):
        self.events.append(event)
        self.changed.set()

    async def until(self, check):
        while not check(self):
            self.changed.clear()
            await self.changed.wait()

    def opened(self, link):
        self.link = link
        self.note("opened")

    def data_received(self, data):
        self.data += data
        self.note("data")
        answer = self.reply(data)
        if answer is not None:
            self.link.send(answer)

    def closed(self, error):
        self.note(("closed", error))

    def input_ended(self):
        return False

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")


class TwoSockets:
    """Lets all listeners together have two sockets."""

    def __init__(self) -> None:
        self.count = 0

    def socket_opened(self, size: int) -> bool:
        if self.count == 2:
            return False
        self.count += 1
        return True

    def socket_closed(self, size: int) -> None:
        self.count -= 1

    def unauthenticated_holds(self, peer: Stranger, size: int) -> None:
        pass


async def hang_up(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
