"""What a store holds comes back: when it is reopened, and in another store."""

from __future__ import annotations

import random

import pytest

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddMessage,
    ClearRetained,
    ConfigError,
    Discard,
    DiscardReason,
    Durability,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    PendingCount,
    PutInflight,
    PutSession,
    PutSubscription,
    RecordDelivery,
    RecoveredDestination,
    RemoveDestination,
    RemoveInflight,
    RemoveSession,
    RemoveSubscription,
    Session,
    SetRetained,
    StoreContext,
    Subscription,
)
from tidegate.testing._portable_contents import by_key, contents, everything, storable
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add, text
from tidegate.testing.memory_store import MemoryStore


class StoreRecovery(StoreFixtures):
    """Destinations, subscriptions, sessions, retained messages, numbers; export and import."""

    async def test_destinations_and_their_counts_come_back(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, OTHER, AddDestination("topic://news", 0))
        await box.write(add(1, 1, 2), add(2, 1), RemoveDestination("queue://returns", 2))
        await box.restart()
        assert sorted(box.state.destinations, key=lambda known: known.destination) == [
            RecoveredDestination("queue://orders", 1),
            RecoveredDestination("topic://news", 0),
        ]
        assert by_key(box.state)["pending"] == {1: PendingCount(2, 18)}
        assert await box.sequences(2) == []

    async def test_whose_destinations_and_retained_messages_are_comes_back(
        self, box: StoreBox, durable: None
    ) -> None:
        """A principal's quotas also count what existed before the start."""

        def retained(name: str, owner: str) -> Message:
            return Message(f"topic://{name}", b"x", retain=True, owner=owner)

        long = "\u00e4" * 300
        await box.open(
            AddDestination("queue://hers", 1, "ann"),
            AddDestination("queue://his", 2, long),
            AddDestination("queue://gateway", 3),
            AddDestination("topic://news", 0, "ann"),
            AddDestination("queue://anew", 4, "ann"),
            SetRetained(retained("hers", "ann")),
            SetRetained(retained("his", long)),
        )
        await box.write(RemoveDestination("queue://anew", 4), SetRetained(retained("hers", "bob")))
        await box.write(AddDestination("queue://anew", 5, "bob"))
        for number in range(1, 3):  # after the second restart nothing is left to carry over
            await box.restart()
            found = by_key(box.state)
            assert found["destinations"] == {
                "queue://hers": RecoveredDestination("queue://hers", 1, "ann"),
                "queue://his": RecoveredDestination("queue://his", 2, long),
                "queue://gateway": RecoveredDestination("queue://gateway", 3, ""),
                "topic://news": RecoveredDestination("topic://news", 0, "ann"),
                "queue://anew": RecoveredDestination("queue://anew", 5, "bob"),
            }
            assert found["retained"] == {
                "topic://hers": retained("hers", "bob"),
                "topic://his": retained("his", long),
            }
            await box.write(add(number), Acknowledge(1, (number,)))

    async def test_what_is_paused_comes_back_and_what_is_pending_stays(
        self, box: StoreBox, durable: None
    ) -> None:
        """A destination added again has new attributes, and keeps its messages."""
        await box.open(
            QUEUE,
            OTHER,
            AddDestination("topic://news", 0, "", True),
            add(1),
            add(2, 2),
            add(3, 1, 2),
        )
        await box.write(
            AddDestination("queue://orders", 1, "ann", producers_paused=True),
            AddDestination("queue://returns", 2, "", consumers_paused=True),
        )
        for number in range(1, 3):  # after the second restart nothing is left to carry over
            await box.restart()
            assert by_key(box.state)["destinations"] == {
                "queue://orders": RecoveredDestination("queue://orders", 1, "ann", True, False),
                "queue://returns": RecoveredDestination("queue://returns", 2, "", False, True),
                "topic://news": RecoveredDestination("topic://news", 0, "", True, False),
            }
            assert (await box.sequences(1), await box.sequences(2)) == ([1, 3], [2, 3])
            await box.write(add(number + 10), Acknowledge(1, (number + 10,)))
        await box.write(
            AddDestination("queue://orders", 1, "ann"),
            AddDestination("queue://returns", 2, "", True, False),
            RemoveDestination("topic://news", 0),
            add(20),
        )
        await box.restart()
        assert by_key(box.state)["destinations"] == {
            "queue://orders": RecoveredDestination("queue://orders", 1, "ann"),
            "queue://returns": RecoveredDestination("queue://returns", 2, "", True, False),
        }
        assert (await box.sequences(1), await box.sequences(2)) == ([1, 3, 20], [2, 3])

    async def test_a_store_says_where_on_this_machine_it_writes(
        self, box: StoreBox, durable: None
    ) -> None:
        """Otherwise nobody notices in time that one of its disks is full."""
        await box.open(QUEUE, *[add(number, body=bytes(1000)) for number in range(1, 20)])
        told = box.store.capabilities.directories
        assert [directory for directory in told if not directory.is_dir()] == []
        written = {path for path in box.directory.rglob("*") if path.is_file()}
        assert [path for path in written if not {*told} & {*path.parents}] == []
        found = box.store.statistics()
        assert 0 <= found.reusable_bytes <= found.disk_bytes

    async def test_a_store_that_measures_its_room_counts_what_it_keeps(
        self, box: StoreBox, durable: None
    ) -> None:
        """Otherwise ``broker.store_limit`` bounds nothing. It may measure now and then, but always at start."""
        await box.open(QUEUE)
        if not box.store.capabilities.measures_room:
            return
        count, size = 8, 32 << 10
        await box.write(*[add(number + 1, body=random.randbytes(size)) for number in range(count)])
        await box.restart()
        found = box.store.statistics()
        assert count * size <= found.used_bytes <= found.disk_bytes
        assert found.claimed_bytes >= 0

    async def test_the_highest_numbers_are_never_forgotten(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, AddDestination("queue://gone", 8), add(1), add(900, 8))
        await box.write(Acknowledge(1, (1,)), RemoveDestination("queue://gone", 8))
        for _ in range(3):
            await box.restart(keep_acknowledged=False)
            assert (box.state.last_sequence, box.state.last_pending_list) == (900, 8)

    async def test_durable_subscriptions_come_back_with_their_messages(
        self, box: StoreBox, durable: None
    ) -> None:
        kept = Subscription(
            1, "client", "name", "topic://a.>", durable=True, qos=1, no_local=True,
            protocol="mqtt", share_group="group", options={"k": "v"},
        )  # fmt: skip
        replaced = Subscription(2, "client", "other", "topic://b", durable=True)
        removed = Subscription(3, "client", "third", "topic://c", durable=True)
        await box.open(PutSubscription(kept), PutSubscription(replaced), PutSubscription(removed))
        await box.write(add(1, 1, 2, 3))
        newer = Subscription(2, "client", "other", "topic://b", durable=True, qos=0)
        await box.write(PutSubscription(newer), RemoveSubscription(3))
        await box.restart()
        assert by_key(box.state)["subscriptions"] == {1: kept, 2: newer}
        assert [await box.sequences(number) for number in (1, 2, 3)] == [[1], [1], []]

    async def test_subscriptions_that_are_not_durable_are_the_broker_s_to_end(
        self, box: StoreBox, durable: None
    ) -> None:
        """What they hold has yet to get rows of the acknowledged log."""
        ending = Subscription(5, "client", "s", "topic://a", durable=False)
        await box.open(QUEUE, PutSubscription(ending))
        await box.write(add(1, 1, 5), add(2, 5))
        assert await box.sequences(5) == [1, 2]
        await box.restart()
        assert list(box.state.subscriptions) == [ending]
        assert by_key(box.state)["pending"] == {1: PendingCount(1, 9), 5: PendingCount(2, 18)}
        assert await box.sequences(5) == [1, 2]
        await box.write(RemoveSubscription(5))
        await box.restart()
        assert list(box.state.subscriptions) == []
        assert by_key(box.state)["pending"] == {1: PendingCount(1, 9)}
        assert await box.sequences(5) == []
        assert box.store.statistics().pending_messages == 1
        await box.restart()
        assert box.state.last_pending_list == 5

    async def test_the_list_of_a_queue_that_ended_is_a_subscription_s(
        self, box: StoreBox, durable: None
    ) -> None:
        """Pending messages stay in it, and leave it gradually, whatever is made in its place."""
        await box.open(QUEUE, OTHER, *[add(number, 1, 2) for number in range(1, 8)])
        await box.write(RecordDelivery(1, (2, 6), (4, 1)), Acknowledge(1, (1,)))
        ended = Subscription(1, "", "", "queue://orders", durable=False, ended="it was deleted")
        await box.write(PutSubscription(ended), RemoveDestination("queue://orders", 0))
        await box.write(AddDestination("queue://orders", 3), add(8, 3), Acknowledge(1, (2, 3)))
        for left in ([4, 5, 6, 7], [6, 7], [6, 7]):
            assert await box.sequences() == left
            await box.restart()
            found = by_key(box.state)
            assert found["destinations"] == {
                "queue://orders": RecoveredDestination("queue://orders", 3),
                "queue://returns": RecoveredDestination("queue://returns", 2),
            }
            assert found["subscriptions"] == {1: ended}
            counts = [stored.delivery_count for stored in await box.page()]
            assert counts == [int(number == 6) for number in left]
            if left[0] == 4:
                await box.write(Acknowledge(1, (4, 5)))
        await box.write(RemoveSubscription(1))
        await box.restart()
        assert list(box.state.subscriptions) == []
        lists = [await box.sequences(number) for number in (1, 2, 3)]
        assert lists == [[], list(range(1, 8)), [8]]
        await box.write(Discard(2, tuple(range(1, 8)), DiscardReason.PURGED))
        assert box.store.statistics().pending_messages == 1

    async def test_the_last_retained_message_of_a_destination_comes_back(
        self, box: StoreBox, durable: None
    ) -> None:
        def message(name: str, body: bytes) -> Message:
            return Message(f"topic://{name}", body, (("h", "v"),), retain=True)

        await box.open(SetRetained(message("a", b"1")), SetRetained(message("b", b"2")))
        await box.write(SetRetained(message("a", b"3")), ClearRetained("topic://b"))
        await box.write(ClearRetained("topic://never"), SetRetained(message("c", bytes(100_000))))
        await box.restart()
        assert by_key(box.state)["retained"] == {
            "topic://a": message("a", b"3"),
            "topic://c": message("c", bytes(100_000)),
        }

    async def test_what_a_session_shares_is_kept_and_removed_piece_by_piece(
        self, box: StoreBox, durable: None
    ) -> None:
        """Each has its own number and no messages; those of others in the same queue stay."""

        def shared(number: int, session: str, qos: int = 1) -> Subscription:
            name = f"queue://{number}"
            return Subscription(number, "c", name, name, True, qos, session=session)

        await box.open(QUEUE, PutSession(Session("a", 60)), PutSession(Session("b", 60)), add(1))
        for number in range(2, 12):
            await box.write(PutSubscription(shared(number, "a" if number < 7 else "b")))
        await box.write(PutSubscription(shared(3, "a", qos=2)), RemoveSubscription(4))
        await box.write(PutSession(Session("a", 90)))
        await box.restart()
        found = by_key(box.state)
        assert found["sessions"] == {"a": Session("a", 90), "b": Session("b", 60)}
        assert found["subscriptions"] == {
            2: shared(2, "a"),
            3: shared(3, "a", qos=2),
            **{number: shared(number, "a") for number in (5, 6)},
            **{number: shared(number, "b") for number in range(7, 12)},
        }
        assert box.state.last_pending_list == 11
        await box.write(*(RemoveSubscription(number) for number in (2, 3, 5, 6)))
        await box.write(RemoveSession("a"))
        await box.restart()
        left = sorted(item.pending_list for item in box.state.subscriptions)
        assert left == list(range(7, 12))
        assert await box.sequences(1) == [1]

    async def test_sessions_and_packet_ids_come_back(self, box: StoreBox, durable: None) -> None:
        def packet(
            client_id: str, direction: InflightDirection, packet_id: int, state: InflightState
        ) -> InflightRecord:
            return InflightRecord(client_id, direction, packet_id, state, "filter", 12)

        incoming, outgoing = InflightDirection.IN, InflightDirection.OUT
        await box.open(
            PutSession(Session("a", 60)),
            PutSession(Session("b", 0xFFFF_FFFF)),
            PutInflight(packet("a", incoming, 1, InflightState.RECEIVED)),
            PutInflight(packet("a", outgoing, 1, InflightState.PUBLISHED)),
            PutInflight(packet("a", outgoing, 2, InflightState.PUBLISHED)),
            PutInflight(packet("b", outgoing, 1, InflightState.PUBLISHED)),
        )
        newer = Session("a", 120, 1_700_000_000_000_000, {"version": "5"})
        await box.write(
            PutSession(newer),
            RemoveSession("b"),
            PutInflight(packet("a", outgoing, 1, InflightState.RELEASED)),
            RemoveInflight("a", outgoing, 2),
            RemoveInflight("a", outgoing, 3),
        )
        await box.restart()
        found = by_key(box.state)
        assert found["sessions"] == {"a": newer}
        assert found["inflight"] == {
            ("a", incoming, 1): packet("a", incoming, 1, InflightState.RECEIVED),
            ("a", outgoing, 1): packet("a", outgoing, 1, InflightState.RELEASED),
        }

    async def test_sessions_and_subscriptions_of_namesakes_are_two(
        self, box: StoreBox, durable: None
    ) -> None:
        """Two principals may use the same client id, and their clients the same names."""

        def of(owner: str, number: int) -> tuple[Session, InflightRecord, Subscription]:
            session = Session(owner * 22, 60, protocol="mqtt", owner=owner, client_id="c")
            record = InflightRecord(session.key, InflightDirection.IN, 1, InflightState.RECEIVED)
            subscription = Subscription(
                number, "c", "news", "topic://a", durable=True, protocol="mqtt", owner=owner
            )
            return session, record, subscription

        hers, her_record, her_subscription = of("a", 1)
        his, his_record, his_subscription = of("b", 2)
        await box.open(
            PutSession(hers),
            PutInflight(her_record),
            PutSubscription(her_subscription),
            PutSession(his),
            PutInflight(his_record),
            PutSubscription(his_subscription),
            add(1, 1, 2),
        )
        await box.restart()
        found = by_key(box.state)
        assert found["sessions"] == {hers.key: hers, his.key: his}
        assert found["subscriptions"] == {1: her_subscription, 2: his_subscription}
        assert found["inflight"] == {
            (hers.key, InflightDirection.IN, 1): her_record,
            (his.key, InflightDirection.IN, 1): his_record,
        }
        await box.write(RemoveSession(his.key), RemoveSubscription(2), RemoveSession("c"))
        await box.restart()
        found = by_key(box.state)
        assert found["sessions"] == {hers.key: hers}
        assert found["subscriptions"] == {1: her_subscription}
        assert list(box.state.inflight) == [her_record]
        assert [await box.sequences(number) for number in (1, 2)] == [[1], []]

    async def test_a_session_that_comes_again_has_no_packet_ids_of_the_one_before(
        self, box: StoreBox, durable: None
    ) -> None:
        record = InflightRecord("a", InflightDirection.IN, 1, InflightState.RECEIVED)
        await box.open(PutSession(Session("a", 60)), PutInflight(record))
        await box.write(RemoveSession("a"), PutSession(Session("a", 90)))
        await box.restart()
        assert list(box.state.inflight) == []
        assert list(box.state.sessions) == [Session("a", 90)]

    async def test_a_batch_that_was_only_written_survives_a_clean_restart(
        self, box: StoreBox, durable: None
    ) -> None:
        await box.open(QUEUE, add(1), add(2))
        await box.write(Acknowledge(1, (1,)), durability=Durability.WRITTEN)
        assert await box.sequences() == [2]
        await box.restart()
        assert await box.sequences() == [2]

    async def test_everything_comes_through_the_portable_format(
        self, box: StoreBox, durable: None, logged: None
    ) -> None:
        from tidegate.portable import carry_in, carry_out

        first, second = box.other("first"), box.other("second")
        await first.open()
        await first.write(*storable(everything(), first.store.capabilities))
        await first.restart()
        held = await contents(first.store, first.state)
        out, back = box.directory / "exported", box.directory / "back"
        await carry_out(first.store, first.state, out)
        reference = MemoryStore(StoreContext(box.directory, "reference", keep_acknowledged=True))
        await carry_in(reference, await reference.open(), out)
        await reference.close()
        state = await reference.open()
        assert await contents(reference, state) == held
        await carry_out(reference, state, back)
        await second.open()
        await carry_in(second.store, second.state, back)
        await second.restart()
        assert await contents(second.store, second.state) == held
        assert second.state.store_id != first.state.store_id
        await second.write(AddMessage(second.state.last_sequence + 1, text(1), (1,)))

    async def test_an_import_into_a_store_that_holds_something_changes_nothing(
        self, box: StoreBox, durable: None
    ) -> None:
        from tidegate.portable import carry_in, carry_out

        empty = MemoryStore(StoreContext(box.directory, "reference", keep_acknowledged=True))
        out = box.directory / "exported"
        await carry_out(empty, await empty.open(), out)
        used = box.other("used")
        await used.open(QUEUE, add(1), Acknowledge(1, (1,)))
        if used.store.capabilities.acknowledged_log is not None:
            await used.rows.release_acknowledged(1)
        await used.restart()
        with pytest.raises(ConfigError):
            await carry_in(used.store, used.state, out)
        assert await used.sequences() == []
