"""One session: what outlives a connection."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidegate.broker.limits.accounts import Account, Counted
from tidegate.spi import (
    Held,
    Identity,
    InflightDirection,
    InflightRecord,
    Session,
    StoredMessage,
    Subscription,
    memory_bytes,
    text_bytes,
)

#: Options kept with a stored session: who the client was, beyond its fields. A will that only the
#: gateway's next run publishes is authorized by them.
GROUPS_OPTION: Final = "groups"  # a JSON list
ADDRESS_OPTION: Final = "address"

#: And this one, for a client with :attr:`tidegate.spi.ClientRules.delivers_once`.
ONCE_OPTION: Final = "delivers-once"

#: And this one, if a directory knows the owner by name, and can say after a start who it then is.
FOLLOWED_OPTION: Final = "followed"
#: Those that do not change while the client is connected.
KEPT_OPTIONS: Final = (ONCE_OPTION, FOLLOWED_OPTION)

#: What a session takes without its names, and each subscription attached to it: measured over
#: 10,000 sessions and rounded up.
SESSION_BYTES: Final = 1500

#: What a kept packet id takes, and how many are charged at a time.
ID_BYTES: Final = 300
ID_STEP: Final = 16

#: Messages in doubt, in order, by name of their subscription.
InDoubt: TypeAlias = dict[str, list[StoredMessage]]

Inflight: TypeAlias = dict[tuple[InflightDirection, int], InflightRecord]


@dataclass(slots=True, eq=False, repr=False)
class SessionState:
    """A session: its stored part, its subscriptions and packet-id states.

    Attributes:
        inflight: stored packet-id states by (direction, packet id).
        connection: the one that owns it now, if any.
        is_ending: it is being removed, a few subscriptions at a time; gone: set when that is done.
        is_removed: it is over.
        left_at: when its last connection ended, by :meth:`TurnWriter.elapsed`: its expiry and the
            delay of its will run from then, whatever the wall clock does.
        in_doubt: by name of a shared subscription, QoS 2 messages whose handshake its last
            connection left unfinished (:mod:`tidegate.broker.sessions.in_doubt`).
        attached: by name, queues and shared subscriptions it consumes from whenever it is connected;
            changed by attach() and detach().
        account: of its principal.
    """

    stored: Session
    inflight: Inflight = field(default_factory=Inflight)
    connection: object = None
    is_ending: bool = False
    gone: asyncio.Event | None = None
    is_removed: bool = False
    left_at: int = 0
    in_doubt: InDoubt = field(default_factory=InDoubt)
    attached: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    account: Account | None = None
    _attached_bytes: int = 0
    _charged: tuple[int, int, int] = (0, 0, 0)

    def attach(self, subscription: Subscription) -> None:
        """It has *subscription*, which replaces any of the same name."""
        if subscription.name in self.attached:
            self.detach(subscription.name)
        self.attached[subscription.name] = subscription
        self._attached_bytes += SESSION_BYTES + text_bytes(subscription.filter)

    def detach(self, name: str) -> Subscription:
        """It no longer has it. Returns: what it was."""
        subscription = self.attached.pop(name)
        self._attached_bytes -= SESSION_BYTES + text_bytes(subscription.filter)
        return subscription

    def charge(self) -> None:
        """Charge its principal for it as it is now. While there is a connection, that is charged for the will."""
        stored = self.stored
        size = SESSION_BYTES + text_bytes(stored.client_id)
        size += self._attached_bytes
        is_kept = stored.will is not None and self.connection is None
        will = memory_bytes(stored.will) if stored.will is not None and is_kept else 0
        self._put(size, will, -(-len(self.inflight) // ID_STEP) * ID_STEP)

    def check_room(self) -> None:
        """Call before a packet id is kept. Raises: FlowControlError: no more may be kept."""
        size, will, ids = self._charged
        if len(self.inflight) >= ids and self.account is not None:
            self.account.check(Held.PACKET_IDS, ID_STEP * ID_BYTES)
            self._put(size, will, ids + ID_STEP)

    def removed(self) -> None:
        """Packet ids are no longer kept."""
        size, will, ids = self._charged
        if len(self.inflight) < ids - 2 * ID_STEP:
            self._put(size, will, len(self.inflight) + ID_STEP)

    def uncharge(self) -> None:
        """It is over."""
        if self.account is not None:
            self._put(0, 0, 0)
            self.account.recount(Counted.SESSIONS, -1)
            self.account = None

    def _put(self, size: int, will: int, ids: int) -> None:
        account, (size_before, will_before, ids_before) = self.account, self._charged
        if account is not None:
            account.add(Held.SESSIONS, size - size_before)
            account.add(Held.WILLS, will - will_before)
            account.add(Held.PACKET_IDS, (ids - ids_before) * ID_BYTES)
            self._charged = size, will, ids

    @property
    def client_id(self) -> str:
        return self.stored.client_id

    @property
    def key(self) -> str:
        return self.stored.key

    @property
    def identity(self) -> Identity:
        """Who the client was when it connected last."""
        options = self.stored.options
        return Identity(
            self.stored.owner,
            frozenset(json.loads(options.get(GROUPS_OPTION, "[]"))),
            self.client_id,
            options.get(ADDRESS_OPTION, ""),
            self.stored.protocol,
        )

    @property
    def is_followed(self) -> bool:
        """A directory can say who its owner is now."""
        return FOLLOWED_OPTION in self.stored.options

    def records(self) -> list[InflightRecord]:
        """Every packet-id state that a resumed connection must know, in the order they began."""
        return list(self.inflight.values())


def identity_options(identity: Identity) -> dict[str, str]:
    """What a stored session keeps of *identity* besides its fields, if anything."""
    options: dict[str, str] = {}
    if identity.groups:
        options[GROUPS_OPTION] = json.dumps(sorted(identity.groups))
    if identity.address:
        options[ADDRESS_OPTION] = identity.address
    return options
