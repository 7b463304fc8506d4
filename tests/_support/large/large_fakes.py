"""A place for large bodies in memory, with faults and with doors that tests open."""

import asyncio

from tidegate.spi import CorruptRecordError, LargeBody, StoreFullError


class FakeWriter:
    def __init__(self, bodies, size):
        self.bodies, self.size = bodies, size
        self.data, self.writes, self.is_abandoned = b"", [], False

    async def write(self, *pieces):
        data = b"".join(pieces)
        await self.bodies.door.wait()
        if self.bodies.fails_at is not None and len(self.data) >= self.bodies.fails_at:
            raise StoreFullError("no room")
        self.data += data
        self.writes.append(len(data))

    async def finish(self, *pieces):
        if pieces:
            await self.write(*pieces)
        await self.bodies.finish_door.wait()
        assert self.size in (len(self.data), None)
        self.bodies.contents[str(len(self.bodies.contents))] = self.data
        return LargeBody(str(len(self.bodies.contents) - 1), len(self.data))

    def abandon(self):
        self.is_abandoned = True


class FakeReader:
    def __init__(self, bodies, body):
        self.bodies, self.body, self.at, self.is_closed = bodies, body, 0, False

    async def read(self, limit):
        await self.bodies.door.wait()
        limit = min(limit, self.bodies.piece)
        if self.bodies.fails_at is not None and self.at >= self.bodies.fails_at:
            raise CorruptRecordError("damaged", location="here")
        data = self.bodies.contents[self.body.id][self.at : self.at + limit]
        self.at += len(data)
        return data

    def close(self):
        self.is_closed = True


class FakeBodies:
    """Implements :class:`tidegate.spi.LargeBodies`."""

    size_min = 4

    def __init__(self):
        self.contents: dict[str, bytes] = {}
        self.writers: list[FakeWriter] = []
        self.readers: list[FakeReader] = []
        self.fails_at: int | None = None
        self.piece = 1 << 30
        self.door, self.finish_door = asyncio.Event(), asyncio.Event()
        self.door.set()
        self.finish_door.set()

    def create(self, size):
        self.writers.append(FakeWriter(self, size))
        return self.writers[-1]

    def open(self, body):
        self.readers.append(FakeReader(self, body))
        return self.readers[-1]

    def holding(self, data):
        """A body that is there already."""
        key = f"k{len(self.contents)}"
        self.contents[key] = data
        return LargeBody(key, len(data))


async def settled():
    """Let every task run until it waits."""
    for _ in range(50):
        await asyncio.sleep(0)
