"""What a client hears of what it sent before it has to go, or before it goes, from a whole gateway."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import mqtt_raw as raw
import pytest
from mqtt_raw import DISCONNECT, PUBACK, PUBCOMP, PUBREC, SUBACK, V5, V311
from wire import StompClient, frame

from tidegate.spi import RequestError
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


async def test_the_receipt_of_a_commit_that_waits_for_its_turn_comes_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with EmbeddedGateway() as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        (session,) = gateway.gateway._front_ends[0]._sessions
        deferred = gateway.gateway.broker.flow.deferred
        in_its_turn = deferred.in_its_turn

        def in_the_next_turn(*arguments: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(deferred, "_takes", lambda _: False)
                in_its_turn(*arguments)
            session.refuse(RequestError("meanwhile"))

        monkeypatch.setattr(deferred, "in_its_turn", in_the_next_turn)
        client.send("BEGIN", transaction="t")
        client.send("SEND", b"x", destination="/queue/a", transaction="t")
        client.send("COMMIT", transaction="t", receipt="done")
        await client.receipt("done")
        end = await client.receive()
        assert (end.command, end.headers["message"]) == ("ERROR", "meanwhile")
        with pytest.raises(EOFError):
            await client.receive()
        await client.aclose()


@pytest.mark.parametrize("late", ["SEND", "DISCONNECT", "NONSENSE"])
async def test_what_follows_disconnect_is_refused_behind_all_receipts(late: str) -> None:
    async with EmbeddedGateway() as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        sends = [
            frame("SEND", b"%d" % n, destination="/queue/a", receipt=str(n)) for n in range(COUNT)
        ]
        wrong = frame(late, destination="/queue/a", receipt="late")
        client.writer.write(b"".join(sends) + frame("DISCONNECT", receipt="bye") + wrong)
        for number in range(COUNT):
            await client.receipt(str(number))
        await client.receipt("bye")
        assert (await client.receive()).command == "ERROR"
        with pytest.raises(EOFError):
            await client.receive()
        await client.aclose()


WRONG = {
    "reserved packet": b"\xf3\x00",
    "malformed": b"\x36\x01\x00",
    "a second CONNECT": raw.connect("again"),
    "wrong moment": raw.packet(raw.SUBACK << 4, raw.two(1) + b"\0"),
}


def confirmations(count: int) -> list[tuple[int, int]]:
    """Of what *sent* makes, in order."""
    return [
        *((PUBACK, n) for n in range(1, count)),
        (PUBREC, count),
        (PUBCOMP, count),
        (SUBACK, count + 1),
    ]


def sent(count: int, version: int) -> bytes:
    """Something of everything that is confirmed when it is durable."""
    publishes = [
        raw.publish("$queue/a", b"%d" % n, qos=1, packet_id=n, version=version)
        for n in range(1, count)
    ]
    return b"".join(
        [
            *publishes,
            raw.publish("$queue/a", b"%d" % count, qos=2, packet_id=count, version=version),
            raw.ack(raw.PUBREL, count),
            raw.subscribe(count + 1, ("other/+", 1), version=version),
        ]
    )


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=list(WRONG))
async def test_mqtt_confirmations_leave_before_the_end(wrong: bytes, version: int) -> None:
    def work(port: int) -> None:
        client = raw.Client(port, version)
        client.connect("c", clean=False, **({"session_expiry": 100} if version == V5 else {}))
        late = raw.publish("$queue/a", b"late", qos=1, packet_id=500, version=version)
        client.send(sent(COUNT, version) + wrong + late)
        heard = [client.receive() for _ in range(COUNT + 2)]
        assert [(p.kind, p.packet_id) for p in heard] == confirmations(COUNT)
        if version == V5:
            assert client.receive(DISCONNECT).code in (0x81, 0x82)
        assert client.is_closed()
        client.close()

    async with EmbeddedGateway() as gateway:
        await asyncio.to_thread(work, gateway.mqtt_port)
        reader = await StompClient.connect(gateway.stomp_port)
        reader.send("SUBSCRIBE", id="1", destination="/queue/a")
        bodies = [(await reader.receive()).body for _ in range(COUNT)]
        assert bodies == [b"%d" % number for number in range(1, COUNT + 1)]
        reader.send("UNSUBSCRIBE", id="1", receipt="no more")
        await reader.receipt("no more")
        await reader.aclose()


MANY = 700  # more than a slice of the loop's time, and than one read


@pytest.mark.parametrize("bad", [b"", BAD["malformed"]], ids=["nothing", "malformed"])
async def test_who_ends_its_side_of_a_stomp_connection_hears_its_receipts(bad: bytes) -> None:
    async with EmbeddedGateway() as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        sends = [
            frame("SEND", b"%d" % n, destination="/queue/a", receipt=str(n)) for n in range(MANY)
        ]
        client.writer.write(b"".join(sends) + bad)
        client.writer.write_eof()
        for number in range(MANY):
            await client.receipt(str(number))
        if bad:
            assert (await client.receive()).command == "ERROR"
        with pytest.raises(EOFError):
            await client.receive()
        await client.aclose()
        while gateway.gateway.broker.connections:
            await asyncio.sleep(0)


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("wrong", [b"", WRONG["malformed"]], ids=["nothing", "malformed"])
async def test_who_ends_its_side_of_an_mqtt_connection_hears_its_confirmations(
    wrong: bytes, version: int
) -> None:
    def work(port: int) -> None:
        client = raw.Client(port, version)
        client.connect("c", clean=False, **({"session_expiry": 100} if version == V5 else {}))
        client.send(sent(MANY, version) + wrong)
        client.socket.shutdown(socket.SHUT_WR)
        heard = [client.receive() for _ in range(MANY + 2)]
        assert [(p.kind, p.packet_id) for p in heard] == confirmations(MANY)
        if version == V5 and wrong:
            assert client.receive(DISCONNECT).code in (0x81, 0x82)
        assert client.is_closed()
        client.close()

    async with EmbeddedGateway() as gateway:
        await asyncio.to_thread(work, gateway.mqtt_port)
        while gateway.gateway.broker.connections:
            await asyncio.sleep(0)


async def test_who_ends_its_side_and_owes_nothing_is_gone_at_once() -> None:
    async with EmbeddedGateway() as gateway:
        client = await StompClient.connect(gateway.stomp_port)
        client.send("SUBSCRIBE", id="1", destination="/queue/a", receipt="there")
        await client.receipt("there")
        client.writer.write_eof()
        with pytest.raises(EOFError):
            await client.receive()
        while gateway.gateway.broker.connections:
            await asyncio.sleep(0)
        await client.aclose()
