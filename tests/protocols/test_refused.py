"""What a client hears of the frames before one that is refused, from a whole gateway."""

from __future__ import annotations

import pytest
from wire import StompClient, frame

from tidegate.testing.embedded import EmbeddedGateway

COUNT = 40
BAD = {
    "malformed": b"SEND\nno colon\n\n\0",
    "no destination": frame("SEND", b"x", receipt="bad"),
    "unknown subscription": frame("UNSUBSCRIBE", id="9", receipt="bad"),
    "unknown transaction": frame("SEND", b"x", destination="/queue/a", transaction="t"),
    "too long a header": b"SEND\n" + b"x" * 100_000,
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
async def test_the_receipts_come_and_nothing_needs_to_be_sent_again(bad: bytes) -> None:
    async with EmbeddedGateway() as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        sends = [
            frame("SEND", b"%d" % n, destination="/queue/a", receipt=str(n)) for n in range(COUNT)
        ]
        client.writer.write(b"".join(sends) + bad + frame("SEND", b"late", destination="/queue/a"))
        for number in range(COUNT):
            await client.receipt(str(number))
        assert (await client.receive()).command == "ERROR"
        with pytest.raises(EOFError):
            await client.receive()
        await client.aclose()
        reader = await StompClient.connect(gateway.stomp_port)
        reader.send("SUBSCRIBE", id="1", destination="/queue/a")
        bodies = [(await reader.receive()).body for _ in range(COUNT)]
        assert bodies == [b"%d" % number for number in range(COUNT)]
        reader.send("UNSUBSCRIBE", id="1", receipt="no more")
        await reader.receipt("no more")
        await reader.aclose()
