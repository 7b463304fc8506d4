"""The contract of a message store.

One store serves one gateway. All methods are called on the gateway's event loop; a store that
blocks does its blocking work in threads of its own. ``write`` is the hot method: it is called once
for everything that arrived in a turn of the loop, and again only after the previous call returned;
reads may run concurrently with it.

A minimal store has ``capabilities``, the life cycle (``open``, ``close``), ``write``, ``page_in`` and
``statistics``. Optional abilities are objects that the capabilities offer, None where the store lacks
them: :class:`AcknowledgedLog`, :class:`~tidegate.spi.EncodedLog`, :class:`~tidegate.spi.LargeBodies`,
:class:`Branches`, :class:`DuplicateIds`, :class:`~tidegate.spi.StoreFiles` and
:class:`~tidegate.spi.StoreParts`. No two of them have a member of the same name, so a store may offer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import msgspec

from tidegate.spi.events import Tell, log_only
from tidegate.spi.messages import Message, StoredMessage
from tidegate.spi.storage.branches import Branch
from tidegate.spi.storage.files import StoreFiles, StoreParts
from tidegate.spi.storage.large import LargeBodies
from tidegate.spi.storage.log import AcknowledgedLog, EncodedLog
from tidegate.spi.storage.operations import (
    DuplicateId,
    InflightRecord,
    PendingListId,
    Session,
    Subscription,
    WriteBatch,
)

#: What a store leaves free on its disks unless told otherwise, bytes.
DISK_FREE_LIMIT: Final = 50 << 20


@dataclass(frozen=True, slots=True)
class StoreCapabilities:
    """What a store can do besides the minimum; declared, never guessed.

    The objects exist from the beginning and are used while the store is open.

    Attributes:
        durable: what ``write`` confirmed with SYNCED survives a power cut.
        acknowledged_log: keeps acknowledged messages for sinks; without it there can be no sink.
        encoded_log: the same log, from a store that has its messages encoded; without it the broker
            encodes them for sinks that work in a process of their own.
        large_bodies: keeps bodies that are never whole in memory; without it every body comes with
            its message.
        branches: keeps prepared branches; without it nobody can prepare.
        duplicate_ids: keeps duplicate ids; without it they are remembered until the gateway stops.
        directories: where it writes on this machine's file systems; the broker refuses publishes
            before one of those is full.
        measures_room: its statistics say how much room it takes, so that ``broker.store_limit`` can
            bound it; if False, the gateway refuses to start with that option.
        files: lists its files and what keeps each.
        parts: lists what else it is made of; without both, operators see only how large it is.
    """

    durable: bool
    acknowledged_log: AcknowledgedLog | None = None
    encoded_log: EncodedLog | None = None
    large_bodies: LargeBodies | None = None
    branches: Branches | None = None
    duplicate_ids: DuplicateIds | None = None
    directories: tuple[Path, ...] = ()
    measures_room: bool = False
    files: StoreFiles | None = None
    parts: StoreParts | None = None


@dataclass(frozen=True, slots=True)
class StoreContext:
    """What the host gives a store factory.

    Attributes:
        data_directory: absolute, exists and is writable; the store may create files anywhere below it.
        gateway_name: for messages and lock owners.
        persistent: False asks for the same behaviour without touching the disk
            (Artemis "Zero Persistence"); the store then declares ``durable=False``.
        keep_acknowledged: a sink is configured: a store with an acknowledged log keeps every
            acknowledged message until it is released. False: forget it at once.
        may_stand_by: False: when another gateway owns the contents, do not wait for them, whatever
            the options say: an operator's command opens the store.
        disk_free_limit: bytes that the store leaves free on its disks whenever it allocates room
            ahead of writing; 0: no limit. The broker takes care of the rest.
        store_limit: bytes that it may take; 0: unlimited. The broker refuses publishes at it. A store
            for which it makes no sense, or that finds on opening that it cannot measure itself,
            raises ConfigError.
        progress: called during :meth:`MessageStore.open` with (what, done, total) so that a long
            recovery is not silent; units are the store's choice, total 0 means unknown.
        stands_by: called during :meth:`MessageStore.open`, on the event loop, with who owns the contents
            while it waits for them, and with "" when it has them.
        lost: called on the event loop, with what happened: another gateway owns the contents, or may.
            The store confirms nothing any more, and the gateway ends.
        tell: reports events of the kind ``store`` to operators; on the event loop.
    """

    data_directory: Path
    gateway_name: str
    persistent: bool = True
    keep_acknowledged: bool = False
    may_stand_by: bool = True
    disk_free_limit: int = 0
    store_limit: int = 0
    progress: Callable[[str, int, int], None] = field(default=lambda _what, _done, _total: None)
    stands_by: Callable[[str], None] = field(default=lambda _owner: None)
    lost: Callable[[str], None] = field(default=lambda _problem: None)
    tell: Tell = log_only


class PendingCount(msgspec.Struct, frozen=True, gc=False):
    """How much is pending in a list. Attributes: messages; body_bytes: bytes of their bodies."""

    messages: int
    body_bytes: int


class RecoveredDestination(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A destination the store knows: the fields of its last :class:`~tidegate.spi.AddDestination`, in
    the same order."""

    destination: str
    pending_list: PendingListId
    owner: str = ""
    producers_paused: bool = False
    consumers_paused: bool = False


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was found and done on opening, for the log and the operator.

    Attributes:
        clean: the store had been closed properly.
        notes: one sentence for everything unusual that was found and what was done about it.
        counts: how much there was to do, by the store's own names.
    """

    clean: bool = True
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """Everything the broker needs at start; no message bodies except retained ones.

    Attributes:
        store_id: identity of this store's contents, made when they were first created; a sink calls
            it the epoch. Lost or recreated contents get a new one.
        last_sequence: highest sequence ever used, 0 when none.
        last_pending_list: highest list id ever used (including branches), 0 when none.
        destinations, subscriptions, sessions, inflight, retained: as last written, without those
            removed since.
        pending: how much is pending, by list; empty lists may be left out.
        report: what was found and done on opening.
    """

    store_id: str
    last_sequence: int = 0
    last_pending_list: int = 0
    destinations: Sequence[RecoveredDestination] = ()
    subscriptions: Sequence[Subscription] = ()
    sessions: Sequence[Session] = ()
    inflight: Sequence[InflightRecord] = ()
    retained: Sequence[Message] = ()
    pending: Mapping[PendingListId, PendingCount] = field(default_factory=dict[int, PendingCount])
    report: RecoveryReport = field(default_factory=RecoveryReport)


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Numbers for limits, health and metrics.

    Attributes:
        pending_messages: messages that at least one list still holds.
        disk_bytes: bytes of the store's files, or of its tables in a database; 0 when it has none.
        writable: False after an error that made the store read-only.
        reusable_bytes: of *disk_bytes*, what new messages can use without taking more of the disk.
        claimed_bytes: what it will still take of the disk for what it has already confirmed.
    """

    pending_messages: int
    disk_bytes: int
    writable: bool
    reusable_bytes: int = 0
    claimed_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """What ``broker.store_limit`` bounds."""
        return self.disk_bytes - self.reusable_bytes


def room_for(free: int, reusable: int, limit: int) -> int:
    """The bytes of room to compare with *limit* (``StoreContext.disk_free_limit``).

    At most half of the limit may be covered by *reusable*, not all of it: on a full disk a store
    cannot even reuse its own files, which needs a little.
    """
    return free + min(reusable, limit // 2)


def is_room_again(room: int, limit: int) -> bool:
    """True when room that was short at *limit* (``disk_free_limit``) is sufficient again."""
    return room >= limit + limit // 4


def is_store_low_again(used: int, limit: int) -> bool:
    """True when a store that was full at *limit* (``store_limit``) no longer is."""
    return used <= limit - limit // 10


class Branches(Protocol):
    """Prepared branches; offered by a store that knows ``PutBranch`` and ``RemoveBranch``."""

    async def recovered_branches(self) -> Sequence[Branch]:
        """The prepared branches and those that an operator completed.

        Called after ``open`` and before the first ``write``.
        """
        ...


class DuplicateIds(Protocol):
    """Offered by a store that knows ``AddDuplicateId`` and ``ForgetDuplicateIds``."""

    async def recovered_duplicate_ids(self) -> Sequence[DuplicateId]:
        """All ids not forgotten; those of one destination in the order of their sequences.

        Called after ``open`` and before the first ``write``.
        """
        ...


@runtime_checkable
class MessageStore(Protocol):
    """A place where messages survive. See the module's docstring for threads and call order."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """What the store can do besides the minimum."""
        ...

    async def open(self) -> RecoveredState:
        """Take exclusive ownership, recover, and return what is there. Called once.

        Non-durable subscriptions are returned like all others, with what is pending for them.

        Raises: StoreLockedError when another gateway owns the contents; CorruptRecordError;
            StoreFullError, StoreUnavailableError (a later start may succeed); StoreIOError (also:
            directory not writable).
        """
        ...

    async def write(self, batch: WriteBatch) -> None:
        """Make *batch* durable, atomically and after all batches before it.

        Returns when it is durable as ``batch.durability`` asks. From then on ``page_in`` (and
        ``acknowledged``) see its effects. A SYNCED batch also makes every earlier WRITTEN batch
        durable, even when it is empty itself.

        Raises:
            StoreFullError, StoreUnavailableError (any that is ``retryable``): nothing was written
                and the store stays usable: the call may be repeated.
            StoreIOError: the store is read-only from now on; whether the batch survives is
                unknown until the next ``open``. StoreLostError: because another gateway has it, or may;
                ``StoreContext.lost`` was called first.
            StoreClosedError.
        Cancellation: the batch may or may not become durable; the caller must not reuse it.
        """
        ...

    async def page_in(
        self, pending_list: PendingListId, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """Read pending messages of one list in sequence order, starting after *after*.

        Args:
            after: a sequence (exclusive); 0 for the beginning.
            limit: 1 or more messages at most.
            bytes_max: stop before the bodies together exceed this, but return at least one
                message when there is one.
        Returns: fewer than *limit* only at the end of the list or because of *bytes_max*; an
            empty sequence means that nothing is pending after *after* (or no such list).
        Raises: CorruptRecordError, StoreIOError, StoreClosedError, and any ``retryable`` error; the
            caller asks again a little later.
        """
        ...

    def statistics(self) -> StoreStatistics:
        """Cheap enough to call every second."""
        ...

    async def close(self) -> None:
        """Flush, write what makes the next start fast, release ownership. Idempotent."""
        ...


class MessageStoreFactory(Protocol):
    """What a plugin registers for a store (hook ``register_message_store``)."""

    @property
    def options_type(self) -> type:
        """A frozen dataclass; the host parses the ``[store]`` table into it."""
        ...

    def create(self, context: StoreContext, options: object) -> MessageStore:
        """Build a store; must not touch the disk yet. *options* is an ``options_type``.

        Raises: ConfigError for options that contradict each other.
        """
        ...
