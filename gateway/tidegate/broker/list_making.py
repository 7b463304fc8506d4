"""How the lists of queues and subscriptions are made, and how they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tidegate.broker.ended_lists import EndedLists
from tidegate.broker.limits.accounts import Account, Accounts, Counted
from tidegate.broker.limits.list_limits import ListLimits
from tidegate.broker.lists.pending_list import PendingList
from tidegate.broker.turn.flow import Flow
from tidegate.broker.unstored.spool import ListSpool, Share
from tidegate.broker.unstored.store import SpoolingStore
from tidegate.config import (
    CURSOR_UNSTORED_DEFAULT,
    SPOOLED,
    BrokerConfig,
    DestinationPolicy,
    PolicyMap,
)
from tidegate.spi import (
    CursorContext,
    CursorFactory,
    CursorFeed,
    FeedTotals,
    Held,
    PendingCursor,
    StoredMessage,
    names,
    text_bytes,
)
from tidegate.spi.events import Tell, log_only

#: What a pending list with its cursor takes in memory, a level of its name in the tree of filters, and
#: a selector when it is compiled, by its length; measured over 10,000 and rounded up.
LIST_BYTES: Final = 3000
LEVEL_BYTES: Final = 350
SELECTOR_FACTOR: Final = 20

_HELD_AS: Final = {Counted.QUEUES: Held.QUEUES, Counted.SUBSCRIPTIONS: Held.SUBSCRIPTIONS}


@dataclass(eq=False, repr=False)
class Lists:
    """See the module.

    Args:
        cursors: cursor factories by the name that policies use.
        policies: a destination has the most specific one.
        temporary_directory: for cursors that spool; exists and is empty.
        spooling: holds messages of queues that are not stored; None when all are stored.

    Attributes:
        charged: all lists, each with the account charged for it.
        feeds: where all of them are fed from.
        tell: of events.
    """

    _config: BrokerConfig
    _flow: Flow
    _limits: ListLimits
    _accounts: Accounts
    _ended: EndedLists
    _: KW_ONLY
    cursors: Mapping[str, CursorFactory]
    policies: Sequence[DestinationPolicy]
    temporary_directory: Path
    spooling: SpoolingStore | None

    def __post_init__(self) -> None:
        self.charged: dict[PendingList, tuple[Account, Counted, int]] = {}
        self.feeds = FeedTotals()
        self.tell: Tell = log_only
        self._store = self._flow.store
        self._writer = self._flow.writer
        self._policies = PolicyMap(self.policies)
        self._unstored_ids = count(-1, -1)

    def policy(self, destination: str) -> DestinationPolicy:
        """The policy of a canonical destination or filter: the most specific that matches."""
        return self._policies.of(destination)

    def change(
        self,
        config: BrokerConfig,
        policies: Sequence[DestinationPolicy],
        cursors: Mapping[str, CursorFactory],
    ) -> None:
        """Use these from now on. Existing lists keep what they were made with."""
        self._config, self.policies, self.cursors = config, policies, cursors
        self._policies = PolicyMap(policies)

    def _charge(self, made: PendingList, account: Account, what: Counted, size: int) -> None:
        self.charged[made] = account, what, size
        made.can_fill = not self._cursor_of(made.destination, is_stored=made.is_stored).needs_store
        made.cursor.feed.on_change = made.changed
        self._flow.unseen.add(made)
        account.recount(what, 1)
        account.add(_HELD_AS[what], size)

    def _discharge(self, gone: PendingList) -> None:
        account, what, size = self.charged.pop(gone)
        gone.is_seen = False
        if gone.figures is None:
            self._flow.unseen.discard(gone)
        else:  # the next look takes it out of the sums
            self._flow.unseen.add(gone)
        account.recount(what, -1)
        account.add(_HELD_AS[what], -size)

    def pages(self, destination: str, *, is_stored: bool) -> bool:
        """A list of *destination*, or of a filter, may hold more than fits in memory: its producers need
        not wait for its consumers."""
        cursor = self._cursor_of(destination, is_stored=is_stored)
        return cursor.needs_store or cursor.spools

    def cursor_name(self, destination: str, *, is_stored: bool) -> str:
        """The name of the cursor that a list of *destination*, or of a filter, has."""
        policy, name = self.policy(destination), ""
        if not is_stored:
            name = policy.subscriber_cursor
        elif names.is_topic(destination):
            name = policy.durable_cursor
        name = name or policy.cursor
        if self.cursors[name].needs_store and not is_stored:
            return CURSOR_UNSTORED_DEFAULT
        return name

    def _cursor_of(self, destination: str, *, is_stored: bool) -> CursorFactory:
        return self.cursors[self.cursor_name(destination, is_stored=is_stored)]

    def _make_cursor(self, destination: str, list_id: int, messages: int) -> PendingCursor:
        store, policy = self._store, self.policy(destination)
        is_stored = list_id > 0
        factory = self._cursor_of(destination, is_stored=is_stored)

        async def read_page(after: int, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
            return await store.page_in(list_id, after, limit, bytes_max)

        return factory.create(
            CursorContext(
                destination=destination,
                read_page=read_page if is_stored else None,
                recovered_count=messages,
                memory_limit_bytes=policy.memory_limit,
                memory_limit_messages=policy.memory_messages,
                page_count=policy.page_count,
                page_bytes=policy.page_bytes,
                temporary_directory=self.temporary_directory,
                temporary_limit_bytes=policy.temporary_limit,
                shared_memory=(
                    self._accounts.stored_memory
                    if factory.needs_store
                    else self._accounts.unstored_memory
                ),
                temporary_space=self._accounts.temporary,
                memory_high_water_percent=(
                    100 if factory.needs_store else policy.cursor_memory_high_water_mark
                ),
                has_room=lambda: self._flow.has_room(list_id),
                feed=CursorFeed(self._writer.now, self.feeds),
            )
        )

    def _spool_of(self, destination: str, list_id: int) -> ListSpool | None:
        """Where messages of a stored queue go that need not be stored; None: into the store."""
        policy = self.policy(destination)
        if self.spooling is None or policy.non_persistent != SPOOLED:
            return None
        share = Share(
            self._accounts.unstored_memory,
            policy.memory_limit,
            policy.memory_messages,
            policy.cursor_memory_high_water_mark,
        )
        return self.spooling.begin(
            list_id,
            destination,
            share,
            policy.temporary_limit,
            lambda: self._flow.has_room(list_id),
        )

    def _remove_list(self, pending_list: PendingList) -> None:
        """The list takes and hands out nothing more; its cursor is closed."""
        pending_list.end()
        self._discharge(pending_list)
        self._flow.forget_list(pending_list)
        # Never cancelled: what it spooled must go.
        name = f"close cursor {pending_list.destination}"
        self._flow.spawn(pending_list.cursor.close(), name, is_closer=True)


def list_bytes(destination: str, selector: str = "") -> int:
    """What a list, with its place in the trees of names, takes in memory without any messages."""
    levels = destination.count(".") + 1
    size = LIST_BYTES + 2 * text_bytes(destination) + LEVEL_BYTES * levels
    return size + SELECTOR_FACTOR * len(selector)
