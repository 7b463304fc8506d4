"""A message store with the six members that a store must have, and nothing else.

It keeps messages in dictionaries and says so in its capabilities. What only matters to a store that
outlives its process (destinations, sessions, retained messages …) it may then ignore, and of the
optional objects (acknowledged log, large bodies, branches, duplicate ids) it offers none.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.spi import (
    Acknowledge,
    AddMessage,
    Discard,
    Message,
    MessageStoreFactory,
    Move,
    PluginInfo,
    RecordDelivery,
    RecoveredState,
    RemoveDestination,
    RemoveSubscription,
    StoreCapabilities,
    StoreClosedError,
    StoreContext,
    StoredMessage,
    StoreFullError,
    StoreStatistics,
    WriteBatch,
    hookimpl,
    option,
)

tidegate_plugin = PluginInfo(summary="messages in a dictionary", spi_version=(1, 0))


@dataclass(frozen=True, slots=True)
class Options:
    """The table ``[store]``, beside ``plugin = "dict"``."""

    messages_max: int = option(100_000, minimum=1, help="Messages held; more are refused.")


class DictStore:
    """Pending lists in memory; each keeps its messages in the order of their sequences."""

    capabilities = StoreCapabilities(durable=False)

    def __init__(self, options: Options) -> None:
        self._messages_max = options.messages_max
        self._is_open = False
        self._lists: dict[int, dict[int, StoredMessage]] = defaultdict(dict)
        self._holders = Counter[int]()  # sequence -> lists that hold the message

    async def open(self) -> RecoveredState:
        """A store that is not durable finds nothing."""
        self._is_open = True
        return RecoveredState(store_id=uuid.uuid4().hex)

    async def write(self, batch: WriteBatch) -> None:
        """All of the batch or nothing: what may fail is checked before anything is changed."""
        self._check_open()
        added = sum(isinstance(operation, AddMessage) for operation in batch.operations)
        if added and added + len(self._holders) > self._messages_max:
            raise StoreFullError(f"{self._messages_max} messages are held already")
        for operation in batch.operations:
            match operation:
                case AddMessage(sequence, message, pending_lists):
                    for pending_list in pending_lists:
                        self._put(pending_list, sequence, message)
                case Acknowledge(pending_list, sequences) | Discard(pending_list, sequences):
                    for sequence in sequences:
                        self._take(pending_list, sequence)
                case Move(pending_list, sequence, target_list, target_sequence, message):
                    self._take(pending_list, sequence)
                    self._put(target_list, target_sequence, message)
                case RecordDelivery(pending_list, sequences, counts):
                    held = self._lists[pending_list]
                    for sequence, count in zip(sequences, counts, strict=True):
                        held[sequence] = StoredMessage.of(sequence, held[sequence].message, count)
                case RemoveDestination(_, pending_list) | RemoveSubscription(pending_list):
                    for sequence in list(self._lists[pending_list]):
                        self._take(pending_list, sequence)
                    del self._lists[pending_list]
                case _:
                    pass  # about what would be told by the next open()

    def _put(self, pending_list: int, sequence: int, message: Message) -> None:
        self._lists[pending_list][sequence] = StoredMessage.of(sequence, message)
        self._holders[sequence] += 1

    def _take(self, pending_list: int, sequence: int) -> None:
        if self._lists[pending_list].pop(sequence, None) is not None:
            self._holders[sequence] -= 1
            if not self._holders[sequence]:
                del self._holders[sequence]

    async def page_in(
        self, pending_list: int, after: int, limit: int, bytes_max: int
    ) -> Sequence[StoredMessage]:
        """Messages behind *after*, which a store for many would find by an index."""
        self._check_open()
        page: list[StoredMessage] = []
        size = 0
        for sequence, stored in self._lists.get(pending_list, {}).items():
            if sequence <= after:
                continue
            size += len(stored.message.body)
            if page and (len(page) == limit or size > bytes_max):
                break
            page.append(stored)
        return page

    def statistics(self) -> StoreStatistics:
        """What the gateway shows; called often."""
        return StoreStatistics(len(self._holders), disk_bytes=0, writable=self._is_open)

    async def close(self) -> None:
        """Idempotent, as every store's."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError("the store is not open")


class DictStoreFactory:
    """Makes a store from its options; the host has parsed and checked them."""

    options_type = Options

    def create(self, context: StoreContext, options: object) -> DictStore:
        """Must not touch a disk or a network yet."""
        assert isinstance(options, Options)
        return DictStore(options)


@hookimpl
def register_message_store() -> MessageStoreFactory:
    """Called once, when the configuration names this store."""
    return DictStoreFactory()
