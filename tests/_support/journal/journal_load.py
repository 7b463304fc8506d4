"""A model of what a journal store may hold after a power cut, and loads that keep it up to date.

A load writes random batches and notes, before each, the state that the store has if the batch is
there.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    ClearRetained,
    Discard,
    DiscardReason,
    Durability,
    ForgetDuplicateIds,
    InflightDirection,
    InflightRecord,
    InflightState,
    LargeBodies,
    LargeBody,
    Message,
    Move,
    Operation,
    PutInflight,
    PutSession,
    PutSubscription,
    RecoveredState,
    RemoveInflight,
    RemoveSession,
    Session,
    SetRetained,
    StoreContext,
    StoreFullError,
    StoreUnavailableError,
    Subscription,
    WriteBatch,
)
from tidegate.testing.faulty_storage import FaultyStorage
from tidegate_store_journal import JournalOptions, JournalStore

ANY_SIZE = 1 << 40
#: Compaction as eager as it can be.
EAGER = {"journal_compact_min_files": 3, "journal_compact_percentage": 50}
#: With files for each queue, of which a few are kept.
FOLDERS: dict[str, Any] = {
    **EAGER,
    "preset": "flatfile",
    "per_destination": ("queue://>",),
    "max_record_size": 8000,
    "filepool_limit": 3,
}
#: A load ends after so many batches that the store refused.
REFUSED_MAX = 20
#: A queue, a durable subscription, and the queue that messages are moved to.
LISTS = (1, 2, 3)
QUEUE, DEAD_LETTERS, TOPIC = "queue://q", "queue://dlq", "topic://t"
#: Messages are sent there, but it is no destination of the store.
GONE = "queue://gone"
#: Duplicate ids of a destination above which the oldest of them are forgotten.
DUPLICATES_MAX = 30
#: Streamed bodies are written and read in pieces of so many bytes.
PIECE_BYTES = 7000
#: Name of their directory on the faulty disk.
LARGE_NAME = "large-messages"
SUBSCRIPTION = Subscription(2, "client", "name", TOPIC, True)

Small = frozenset[tuple[Any, ...]]


class State(NamedTuple):
    """What the store holds: sequences of each list, all rows of the log so far, the rest."""

    lists: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, int], ...]
    small: Small


class Profile(NamedTuple):
    """What a load is like.

    Attributes: batches: how many at most; sizes: of bodies; staying: share of messages that nobody
        takes for long; small: share of batches with sessions, packet ids, retained messages, duplicate ids;
        retained_bytes: of their bodies at least; unordered: share of batches in which a message is dropped or moved; streamed: share of
        messages whose body is streamed to a file of its own; checkpoints: share of
        batches behind which there is a cleanup; metadata: with a metadata store; prepare: makes the storage fit for the
        options (a ring for ASYNCIO, mappings for MAPPED).
    """

    name: str
    batches: int = 60
    sizes: tuple[int, ...] = (5, 800, 20_000)
    staying: float = 0.0
    small: float = 0.0
    retained_bytes: int = 0
    unordered: float = 0.0
    streamed: float = 0.0
    checkpoints: float = 0.1
    metadata: bool = True
    options: Mapping[str, Any] = MappingProxyType({})
    prepare: Callable[[Any], Any] = lambda storage: storage


@dataclass
class Model:
    """The state of the store as the load knows it, and all states before.

    Attributes: confirmed: index of the last state known to be durable; found: of the one that was
        found last; released: rows that a sink gave back; sizes: of the bodies by sequence; streamed:
        whose bodies have a file.
    """

    states: list[State] = field(default_factory=list[State])
    confirmed: int = 0
    found: int = 0
    sequence: int = 0
    released: int = 0
    lists: dict[int, list[int]] = field(default_factory=lambda: {item: [] for item in LISTS})
    rows: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    small: dict[tuple[str, Any], Any] = field(default_factory=dict[tuple[str, Any], Any])
    sizes: dict[int, int] = field(default_factory=dict[int, int])
    streamed: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.states.append(self.state())

    def state(self) -> State:
        """A copy of what is there now."""
        lists = tuple(tuple(self.lists[list_id]) for list_id in LISTS)
        return State(lists, tuple(self.rows), frozenset(self.small.items()))

    def go_on_from_found(self) -> None:
        """What came after the state that was found is gone for good: be as in that one."""
        del self.states[self.found + 1 :]
        self.go_back()

    def go_back(self) -> None:
        """The last batch was refused: be as in the last state."""
        state = self.states[-1]
        for list_id, sequences in zip(LISTS, state.lists, strict=True):
            self.lists[list_id] = list(sequences)
        self.rows = list(state.rows)
        self.small = dict(state.small)


def message(number: int, size: int) -> Message:
    """The message that is stored under sequence *number*: no two are the same.

    Four destinations, so that a layout by destination has several directories, and one of them is
    no destination of the store, so that its directory goes as soon as nothing lives in it.
    """
    body = (b"%d " % number).ljust(size, b"%d" % (number % 10))
    return Message((QUEUE, DEAD_LETTERS, GONE, TOPIC)[number % 4], body, (("n", str(number)),), 5)


async def stream(store: JournalStore, body: bytes, *, gives_up: bool = False) -> LargeBody | None:
    """Write *body* to a file of its own, in pieces; *gives_up*: not to its end."""
    writer = large_bodies(store).create(len(body))
    for at in range(0, len(body), PIECE_BYTES):
        await writer.write(body[at : at + PIECE_BYTES])
        if gives_up:
            writer.abandon()
            return None
    return await writer.finish()


async def is_as_sent(store: JournalStore, sequence: int, found: Message, model: Model) -> bool:
    """*found* is the message that was stored under *sequence*, wherever its body is."""
    is_streamed = sequence in model.streamed
    if (found.large is not None) != is_streamed:
        return False
    if found.large is not None:
        reader = large_bodies(store).open(found.large)
        try:
            body = b""
            while part := await reader.read(PIECE_BYTES):
                body += part
        finally:
            reader.close()
        found = msgspec.structs.replace(found, body=body, large=None)
    return found == message(sequence, model.sizes.get(sequence, -1))


def large_bodies(store: JournalStore) -> LargeBodies:
    """Where the store keeps streamed bodies."""
    bodies = store.capabilities.large_bodies
    assert bodies is not None
    return bodies


def retained(number: int, name: str, size: int = 0) -> Message:
    """A retained message whose body says when it was set."""
    return Message(f"topic://{name}", (b"retained %d" % number).ljust(size, b"."))


async def small_state(store: JournalStore, state: RecoveredState) -> Small:
    """Everything that is not messages, as :attr:`Model.small` has it."""
    items: list[tuple[tuple[str, Any], Any]] = []
    last: dict[str, int] = {}
    for known in await store.recovered_duplicate_ids():
        assert known.sequence > last.get(known.destination, 0), "duplicate ids out of order"
        last[known.destination] = known.sequence
        items.append((("duplicate", (known.destination, known.sequence)), known.duplicate_id))
    items += [
        (("destination", d.destination), (d.pending_list, d.owner)) for d in state.destinations
    ]
    items += [(("subscription", s.pending_list), s.name) for s in state.subscriptions]
    items += [(("session", s.key), s.expiry_interval) for s in state.sessions]
    items += [
        (("inflight", (r.session, r.direction, r.packet_id)), (r.state, r.sequence))
        for r in state.inflight
    ]
    items += [(("retained", m.destination), m.body) for m in state.retained]
    return frozenset(items)


# ------------------------------------------------------------------------------------------- loads


class _Writer:
    """Makes the operations of a load and applies each to the model."""

    def __init__(self, model: Model, chance: random.Random, profile: Profile) -> None:
        self.model = model
        self.chance = chance
        self.profile = profile
        self.staying: set[int] = set()

    def setup(self) -> list[Operation]:
        """What everything else needs."""
        small = self.model.small
        small["destination", QUEUE] = (1, "ann")
        small["destination", DEAD_LETTERS] = (3, "")
        small["destination", TOPIC] = (0, "bob")
        small["subscription", 2] = SUBSCRIPTION.name
        return [
            AddDestination(QUEUE, 1, "ann"),
            AddDestination(DEAD_LETTERS, 3),
            AddDestination(TOPIC, 0, "bob"),
            PutSubscription(SUBSCRIPTION),
        ]

    async def batch(self, store: JournalStore) -> list[Operation]:
        """A random one; may be empty. Bodies that are streamed are written to *store* first."""
        chance, profile = self.chance, self.profile
        operations: list[Operation] = []
        for _ in range(chance.randrange(4)):
            operation = self._add()
            if profile.streamed and chance.random() < profile.streamed:
                operation = await self._streamed(store, operation)
            operations.append(operation)
        for list_id in chance.sample(LISTS, 2):
            taken = [item for item in self.model.lists[list_id] if item not in self.staying]
            taken = taken[: chance.randrange(8)]
            if taken:
                operations.append(self._take(list_id, taken))
        if chance.random() < profile.unordered:
            operations += self._drop_or_move()
        if chance.random() < profile.small:
            operations += self._small()
        if len(self.staying) > 40:
            self.staying -= set(chance.sample(sorted(self.staying), 20))
        return operations

    async def _streamed(self, store: JournalStore, operation: AddMessage) -> AddMessage:
        sent = operation.message
        if self.chance.random() < 0.2:  # another upload, which nobody publishes
            await stream(store, sent.body, gives_up=self.chance.random() < 0.5)
        large = await stream(store, sent.body)
        self.model.streamed.add(operation.sequence)
        sent = msgspec.structs.replace(sent, body=b"", large=large)
        return AddMessage(operation.sequence, sent, operation.pending_lists)

    def _add(self) -> AddMessage:
        model, chance = self.model, self.chance
        model.sequence += 1
        size = model.sizes[model.sequence] = chance.choice(self.profile.sizes)
        lists = chance.choice([(1,), (1,), (2,), (1, 2)])
        for list_id in lists:
            model.lists[list_id].append(model.sequence)
        added = message(model.sequence, size)
        if chance.random() < self.profile.staying and added.destination != GONE:
            self.staying.add(model.sequence)
        return AddMessage(model.sequence, added, lists)

    def _take(self, list_id: int, taken: Sequence[int]) -> Operation:
        gone = set(taken)
        model = self.model
        model.lists[list_id] = [item for item in model.lists[list_id] if item not in gone]
        model.rows += [(item, list_id) for item in taken]
        times = tuple(1000 + item for item in taken)
        return Acknowledge(list_id, tuple(taken), times, 2000, "client", "name", "stomp")

    def _drop_or_move(self) -> list[Operation]:
        model = self.model
        list_id = self.chance.choice((1, 2))
        if len(model.lists[list_id]) < 4:
            return []
        victim = model.lists[list_id].pop(2)
        if self.chance.random() < 0.5:
            return [Discard(list_id, (victim,), DiscardReason.EXPIRED)]
        model.sequence += 1
        size = model.sizes[model.sequence] = 50
        model.lists[3].append(model.sequence)
        return [Move(list_id, victim, 3, model.sequence, message(model.sequence, size))]

    def _small(self) -> list[Operation]:
        model, chance = self.model, self.chance
        small = model.small
        client = f"c{chance.randrange(3)}"
        number = model.sequence
        operations: list[Operation] = [PutSession(Session(client, number))]
        small["session", client] = number
        direction = chance.choice(list(InflightDirection))
        packet_id = chance.randrange(1, 4)
        key = (client, direction, packet_id)
        if ("inflight", key) in small and chance.random() < 0.5:
            del small["inflight", key]
            operations.append(RemoveInflight(*key))
        else:
            record = InflightRecord(*key, InflightState.RECEIVED, "", number)
            small["inflight", key] = (record.state, number)
            operations.append(PutInflight(record))
        if ("retained", f"topic://{client}") in small and chance.random() < 0.3:
            del small["retained", f"topic://{client}"]
            operations.append(ClearRetained(f"topic://{client}"))
        else:
            message_kept = retained(number, client, self.profile.retained_bytes)
            small["retained", f"topic://{client}"] = message_kept.body
            operations.append(SetRetained(message_kept))
        if chance.random() < 0.1:
            for known in [key for key in small if key == ("session", client)]:
                del small[known]
            for known in [k for k in small if k[0] == "inflight" and k[1][0] == client]:
                del small[known]
            operations.append(RemoveSession(client))
        return operations + self._duplicate_ids()

    def _duplicate_ids(self) -> list[Operation]:
        """Some new ones; of a destination that has many the oldest are forgotten."""
        model, chance = self.model, self.chance
        destination = chance.choice((QUEUE, TOPIC))
        operations: list[Operation] = []
        for _ in range(chance.randrange(1, 6)):
            model.sequence += 1
            name = f"{model.sequence:b}"  # of many lengths
            model.small["duplicate", (destination, model.sequence)] = name
            operations.append(AddDuplicateId(destination, name, model.sequence))
        known = sorted(k for k in model.small if k[0] == "duplicate" and k[1][0] == destination)
        if len(known) > DUPLICATES_MAX:
            gone = known[: chance.randrange(1, len(known) + 1)]
            for key in gone:
                del model.small[key]
            operations.append(ForgetDuplicateIds(destination, gone[-1][1][1]))
        return operations


Confirmed = Callable[[int], None]


async def load(
    store: JournalStore,
    model: Model,
    chance: random.Random,
    profile: Profile,
    confirmed: Confirmed = lambda _index: None,
    before_each: Callable[[int], None] = lambda _number: None,
) -> None:
    """Random batches, until the profile's are written or the store fails.

    *confirmed* is told the index of each state once it is known to be durable. *before_each* is
    called with the number of each batch before it is made, also of one that then has nothing in it.
    """
    writer = _Writer(model, chance, profile)
    refused = 0

    def confirm() -> None:
        model.confirmed = len(model.states) - 1
        confirmed(model.confirmed)

    for number in range(profile.batches):
        is_new = not model.small
        before_each(number)
        try:
            operations = writer.setup() if is_new else await writer.batch(store)
            if not operations:
                continue
            model.states.append(model.state())
            durability = Durability.SYNCED if is_new else chance.choice(list(Durability))
            try:
                await store.write(WriteBatch(operations, durability))
            except (StoreFullError, StoreUnavailableError):
                model.states.pop()
                raise
        except (StoreFullError, StoreUnavailableError):
            # Refused, and nothing of it may ever be there; what comes next must work again.
            model.go_back()
            refused += 1
            if is_new or refused > REFUSED_MAX:
                return
            continue
        if durability is Durability.SYNCED:
            confirm()
        if chance.random() < 0.2:
            last = store.log_statistics().last
            model.released = max(model.released, last - chance.choice((0, 0, *range(8))))
            await store.release_acknowledged(model.released)
        if chance.random() < profile.checkpoints:
            try:
                await store._checkpointer.run(cleanup=True)  # pyright: ignore[reportPrivateUsage]
                confirm()
                await tidy_up(store, chance)
            except StoreUnavailableError:
                continue  # tried again by the next one
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise


async def tidy_up(store: JournalStore, chance: random.Random) -> None:
    """What a cleanup does to the directories of destinations, and to one of them in any case."""
    tidy = store._tidy  # pyright: ignore[reportPrivateUsage]
    await tidy.tidy()
    names = sorted(store._series.directories)  # pyright: ignore[reportPrivateUsage]
    if names:
        await tidy.compact(chance.choice(names).replace("#", "://"))


def new_store(where: Path, storage: Any, **options: Any) -> JournalStore:
    """A store with small files that does nothing by the clock."""
    values: dict[str, Any] = {
        "journal_max_file_length": 64 << 10,
        "checkpoint_interval": 3600.0,
        "cleanup_interval": 3600.0,
    }
    context = StoreContext(where, "test", persistent=True, keep_acknowledged=True)
    large_storage = storage.folder(LARGE_NAME) if isinstance(storage, FaultyStorage) else None
    return JournalStore(context, JournalOptions(**{**values, **options}), storage, large_storage)


def store_of(profile: Profile, where: Path, storage: Any, **options: Any) -> JournalStore:
    """As :func:`new_store`, as *profile* has it."""
    return new_store(where, profile.prepare(storage), **{**profile.options, **options})
