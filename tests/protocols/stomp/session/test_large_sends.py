"""Large SENDs that are still on their way to the disk when the session ends."""

import asyncio
import random

import pytest
from large_fakes import FakeBodies, settled
from stomp_session import BAD, SENDS

from tidegate.spi import ConnectionEndedError, RequestError, StoreIOError
from tidegate_protocols.stomp import StompOptions
from tidegate_protocols.stomp._transitions import State

LARGE = 2000


def large_send(number, **headers):
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    head = f"SEND\ndestination:/queue/{number}\n{lines}content-length:{LARGE}\n\n"
    return head + "x" * LARGE + "\0"


def small_send(number):
    return f"SEND\ndestination:/queue/{number}\n\n\0"


class TestLargeSendsBeforeTheEnd:
    """What was received whole counts, however the connection ends, as with small messages."""

    @pytest.fixture
    async def ending(self, make_harness):
        """A connected session whose store syncs when it is told to, and which is to end."""
        bodies = FakeBodies()
        bodies.size_min = LARGE
        harness = make_harness(StompOptions(), loop=asyncio.get_running_loop(), large_bodies=bodies)
        harness.session.data_received(b"CONNECT\naccept-version:1.2\nheart-beat:1000,0\n\n\0")
        await settled()
        harness.frames()
        harness.connection.take()
        bodies.finish_door.clear()
        yield harness, bodies
        assert harness.session.state is State.CLOSED

    async def feed(self, harness, *texts):
        harness.session.data_received("".join(texts).encode())
        await settled()

    def published(self, harness):
        """Numbers of the published messages, and the names of the other calls."""
        return [
            int(call[1].destination.removeprefix("queue://")) if call[0] == "publish" else call[0]
            for call in harness.connection.take("check_publish", "writable")
        ]

    async def test_the_end_of_the_socket_waits_for_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2), large_send(3)[:-1])
        harness.session.link_closed(None)
        assert harness.connection.take("check_publish") == [("writable", False)]
        assert (harness.session.state, harness.ended) == (State.CONNECTED, [])
        assert harness.deliver("nobody", 1) == []
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, 2, "disconnect"]
        assert harness.ended == [harness.session]

    async def test_with_nothing_whole_it_does_not_wait(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1)[:-1])
        harness.session.link_closed(None)
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]
        assert bodies.writers[0].is_abandoned

    @pytest.mark.parametrize("cut", [0, 1])
    async def test_what_was_sent_behind_them_is_handled_too(self, ending, cut):
        harness, bodies = ending
        await self.feed(
            harness,
            large_send(1),
            "BEGIN\ntransaction:t\n\n\0",
            small_send(2),
            *[large_send(number) for number in range(3, 10)],
            "COMMIT\ntransaction:t\n\n\0",
            small_send(10)[: -cut or None],
        )
        assert self.published(harness) == []
        harness.session.link_closed(ConnectionResetError("gone"))
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [
            1,
            "begin",
            *range(2, 10),
            "commit",
            *([] if cut else [10]),
            "disconnect",
        ]
        assert harness.ended == [harness.session]

    async def test_a_disconnect_behind_them_is_graceful(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), "DISCONNECT\n\n\0")
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        calls = harness.connection.take("check_publish", "writable")
        assert [call[0] for call in calls] == ["publish", "synchronize", "disconnect"]
        assert calls[-1] == ("disconnect", {"graceful": True})

    async def test_a_bad_frame_behind_them_is_refused_in_its_turn(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), small_send(2), "NONSENSE\n\n\0", small_send(3))
        assert harness.frames() == []
        assert not harness.link.is_reading
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, 2, "disconnect"]
        assert "unknown command" in harness.error().headers["message"]
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    async def test_a_frame_behind_large_bodies_waits_for_them_too(self, ending):
        harness, bodies = ending
        harness.connection.has_unconfirmed = True
        harness.session.data_received(
            (large_send(1, receipt="1") + BAD["unknown command"] + SENDS).encode()
        )
        await settled()
        assert harness.session.state is State.CONNECTED
        bodies.finish_door.set()
        await settled()
        calls = harness.connection.take("check_publish", "holds")
        assert [call[0] for call in calls] == ["publish", "writable", "synchronize"]
        assert (harness.frames(), harness.link.is_reading) == ([], True)
        harness.session.confirmed(["1", calls[-1][1]])
        assert [f.command for f in harness.frames()] == ["RECEIPT", "ERROR"]
        await settled()
        harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    @pytest.mark.parametrize("lost", [False, True])
    async def test_a_bad_large_one_behind_them_is_refused_in_its_turn(self, ending, lost):
        harness, bodies = ending
        bad = large_send(2, receipt="r", transaction="unknown")
        await self.feed(harness, large_send(1), bad, small_send(3))
        if lost:
            harness.session.link_closed(None)
            harness.link.is_closing = True
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        if not lost:
            assert harness.error().headers["receipt-id"] == "r"
            harness.session.link_closed(None)
        assert harness.ended == [harness.session]

    async def test_a_client_that_falls_silent_is_told_so_behind_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2)[:100])
        harness.session._heart_beat_expired(2.0)
        await settled()
        assert harness.frames() == []
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        assert "heart-beat missed" in harness.error().headers["message"]
        assert bodies.writers[1].is_abandoned

    @pytest.mark.parametrize("lost", [False, True])
    @pytest.mark.parametrize("how", ["closed", "end", "failed"])
    async def test_the_gateways_own_end_does_not_wait(self, ending, how, lost):
        harness, bodies = ending
        await self.feed(harness, large_send(1), small_send(2))
        if lost:
            harness.session.link_closed(None)
            harness.link.is_closing = True
        error = ConnectionEndedError("shutdown", "over")
        if how == "failed":
            harness.session.failed("r", error)
        else:
            getattr(harness.session, how)(error)
        await settled()
        if not lost:
            assert harness.error().headers["message"] == "over"
            harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == ([] if how == "closed" else ["disconnect"])
        assert harness.ended == [harness.session]
        assert bodies.writers[0].is_abandoned

    async def test_a_message_that_cannot_be_written_to_the_end_does_not_end_them(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1))
        harness.session._large_broke(StoreIOError("damaged"))
        assert harness.link.is_aborted
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == [1, "disconnect"]
        assert harness.ended == [harness.session]

    async def test_a_refused_one_ends_the_lost_connection(self, ending):
        harness, bodies = ending
        await self.feed(harness, large_send(1), large_send(2))
        harness.connection.fail["publish"] = RequestError("no")
        harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]

    @pytest.mark.parametrize("lost", [False, True])
    async def test_a_defect_ends_the_connection(self, ending, lost, caplog):
        harness, bodies = ending
        await self.feed(harness, large_send(1))
        harness.connection.fail["publish"] = ValueError("a defect")
        if lost:
            harness.session.link_closed(None)
        bodies.finish_door.set()
        await settled()
        if not lost:
            assert harness.link.is_aborted
            harness.session.link_closed(None)
        assert self.published(harness) == ["disconnect"]
        assert harness.ended == [harness.session]
        assert "a defect" in caplog.text


def random_frames(chance):
    """Frames of a client, large and small, a few of them wrong, in a transaction and without."""
    makers = [
        lambda n: f"SEND\ndestination:/queue/{n}\nreceipt:{n}\n\nsmall\0",
        lambda n: large_send(n),
        lambda n: large_send(n, transaction="t", receipt=n),
        lambda n: (
            f"SEND\ndestination:/queue/{n}\n\n" + "y" * chance.choice([1990, LARGE, 5000]) + "\0"
        ),
        lambda n: f"SEND\ndestination:/queue/{n}\ntransaction:t\n\n\0",
        lambda n: "BEGIN\ntransaction:t\n\n\0",
        lambda n: f"COMMIT\ntransaction:t\nreceipt:{n}\n\n\0",
        lambda n: f"SUBSCRIBE\nid:{n}\ndestination:/queue/a\n\n\0",
    ]
    rare = [
        lambda n: "NONSENSE\n\n\0",
        lambda n: large_send(n)[:-1] + "x",
        lambda n: "SEND\n\nno destination\0",
        lambda n: f"DISCONNECT\nreceipt:{n}\n\n\0",
    ]
    count = chance.randrange(1, 9)
    return "".join(
        chance.choice(rare if chance.random() < 0.06 else makers)(number) for number in range(count)
    )


async def what_the_broker_is_told(make_harness, texts, bodies, chance):
    """The calls of a session that is sent *texts*, and then lost."""
    harness = make_harness(loop=asyncio.get_running_loop(), large_bodies=bodies)
    harness.session.data_received(b"CONNECT\naccept-version:1.2\n\n\0")
    await settled()
    harness.connection.take()
    transactions = set()

    def known(name):
        return RequestError("unknown") if name is not None and name not in transactions else None

    harness.connection.fail = {
        "publish": lambda message, receipt, transaction: known(transaction),
        "begin": transactions.add,
        "commit": lambda transaction, receipt: known(transaction) or transactions.discard("t"),
    }
    for text in texts:
        if bodies is not None:
            door = bodies.finish_door
            chance.choice([door.set, door.clear])()
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
        harness.session.data_received(text)
    harness.session.link_closed(None)
    if bodies is not None:
        bodies.finish_door.set()
    while not harness.ended:
        await settled()
    assert harness.session.state is State.CLOSED
    calls = harness.connection.take("check_publish", "writable", "synchronize")
    return [
        ("publish", call[1].destination, *call[2:]) if call[0] == "publish" else call
        for call in calls
    ]


@pytest.mark.parametrize("seed", range(150))
async def test_a_lost_client_sent_the_same_whether_bodies_are_streamed_or_not(make_harness, seed):
    async with asyncio.timeout(60):
        chance = random.Random(seed)
        data = random_frames(chance).encode()
        data = data[: chance.choice([len(data), chance.randrange(len(data) + 1)])]
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(5)))
        texts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        bodies = FakeBodies()
        bodies.size_min = LARGE
        plain = await what_the_broker_is_told(make_harness, texts, None, chance)
        assert await what_the_broker_is_told(make_harness, texts, bodies, chance) == plain
