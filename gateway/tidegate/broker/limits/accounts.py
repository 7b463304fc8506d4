"""One tree that counts everything held in memory for somebody, in bytes.

::

    gateway                    broker.held_limit
    ├── principal alice        [[quotas]]
    │   ├── connection …       broker.connection_held_limit
    │   └── connection …
    └── principal bob

What is *held* is counted: what a client has begun and not ended, answers it does not read, what
stays when it has gone. A message that only passes is not: its turn is bounded by
``broker.pending_write_limit``, and its place in a list by the cursor.

What is charged to a node counts for all nodes above it. A request for more than one of them has is
refused (:class:`QuotaError`; where the gateway itself has no room, :class:`FlowControlError`) and
told which limit it was; nothing is counted then.

Besides bytes there are things of which a principal may have a limited number (:class:`Counted`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final
from weakref import WeakValueDictionary

from tidegate.broker.limits.meter import Meter
from tidegate.config import BrokerConfig, Quota, quota_for
from tidegate.spi import (
    CursorMemory,
    FlowControlError,
    Held,
    PluginContractError,
    QuotaError,
    TemporarySpace,
    format_size,
)

_KINDS: Final = len(Held)

#: Meters kept before unused ones are looked for.
METERS_MIN: Final = 1000


class Counted(enum.IntEnum):
    """What a principal may have a limited number of: a limit of its quota."""

    CONNECTIONS = 0
    SESSIONS = 1
    SUBSCRIPTIONS = 2
    QUEUES = 3


@final
class Account:
    """A node of the tree.

    Args:
        name: for errors and metrics.
        parent: what counts here counts there, too; None for the root.
        limit: bytes, 0: only the nodes above limit it.
        option: the option that sets the limit.
        in_flight_limit: bytes, 0 for none.
        quota: what else is limited here.

    Attributes:
        counts: how many things there are, by :class:`Counted`.
        held: bytes, including the nodes below; peak: the most there ever were.
        refused: how often, here or below, a request was refused for lack of room.
        kinds: *held* by :class:`Held`.
        in_flight: bytes delivered and not acknowledged, besides what is held; in_flight_peak.
    """

    __slots__ = (
        "__weakref__",
        "counts",
        "held",
        "in_flight",
        "in_flight_limit",
        "in_flight_peak",
        "kinds",
        "limit",
        "name",
        "option",
        "parent",
        "peak",
        "quota",
        "refused",
    )

    def __init__(
        self,
        name: str,
        parent: Account | None,
        limit: int,
        option: str,
        quota: Quota | None = None,
        in_flight_limit: int = 0,
    ) -> None:
        self.name = name
        self.parent = parent
        self.limit = limit
        self.option = option
        self.held = 0
        self.peak = 0
        self.refused = 0
        self.kinds = [0] * _KINDS
        self.in_flight = 0
        self.in_flight_peak = 0
        self.in_flight_limit = in_flight_limit
        self.quota = quota
        self.counts = [0] * len(Counted)

    def charge(self, kind: Held, size: int) -> None:
        """Count *size* bytes more, 0 or more. Raises: FlowControlError; then nothing is counted."""
        self.check(kind, size)
        self.add(kind, size)

    def check(self, kind: Held, size: int) -> None:
        """Raises: FlowControlError when *size* bytes more are too many."""
        node: Account | None = self
        while node is not None:
            if node.limit and node.held + size > node.limit:
                raise node.refuse(size)
            if kind is Held.RETAINED and node.quota is not None:
                limit = node.quota.retained_limit
                if limit and node.kinds[kind] + size > limit:
                    node.note_refusal()
                    raise QuotaError(
                        f"{node.name} has {node.kinds[kind]} bytes of retained "
                        f"messages; {size} more would exceed quotas.retained_limit = "
                        f"{format_size(limit)}; clear some of them"
                    )
            node = node.parent

    def has_room(self, size: int) -> bool:
        """Whether there is room for *size* bytes more; False does not count as a refusal."""
        node: Account | None = self
        while node is not None:
            if node.limit and node.held + size > node.limit:
                return False
            node = node.parent
        return True

    def count(self, what: Counted) -> None:
        """One more. Raises: FlowControlError; then it is not counted."""
        self.check_count(what)
        self.recount(what, 1)

    def check_count(self, what: Counted) -> None:
        """Raises: FlowControlError when one more is too many."""
        node: Account | None = self
        while node is not None:
            if node.quota is not None:
                option = f"{what.name.lower()}_max"
                limit: int = getattr(node.quota, option)
                if limit and node.counts[what] >= limit:
                    node.note_refusal()
                    raise QuotaError(
                        f"{node.name} has {limit} {what.name.lower()}, which is the limit"
                        f" (quotas.{option})"
                    )
            node = node.parent

    def recount(self, what: Counted, difference: int) -> None:
        """Count *difference* more or fewer, whether there is room or not."""
        node: Account | None = self
        while node is not None:
            node.counts[what] += difference
            node = node.parent

    def note_refusal(self) -> None:
        """Somebody was refused: count it here and above."""
        node: Account | None = self
        while node is not None:
            node.refused += 1
            node = node.parent

    def refuse(self, size: int) -> FlowControlError:
        """The error for somebody who asked for *size* bytes, counted up to the root."""
        self.note_refusal()
        error = FlowControlError if self.parent is None else QuotaError
        return error(
            f"{self.name} holds {self.held} bytes; {size} more would exceed "
            f"{self.option} = {format_size(self.limit)}"
        )

    def add(self, kind: Held, size: int) -> None:
        """Count *size* bytes more (or fewer), whether there is room or not."""
        node: Account | None = self
        while node is not None:
            node.held += size
            node.kinds[kind] += size
            if node.held > node.peak:
                node.peak = node.held
            node = node.parent

    def add_in_flight(self, size: int) -> None:
        """Count *size* bytes more (or fewer) that are in flight."""
        node: Account | None = self
        while node is not None:
            node.in_flight += size
            if node.in_flight > node.in_flight_peak:
                node.in_flight_peak = node.in_flight
            node = node.parent

    def has_room_in_flight(self, own: int, floor: int) -> bool:
        """Tell whether a connection with *own* bytes in flight may have more; above *floor* only
        while there is room in all nodes."""
        if self.in_flight_limit and own >= self.in_flight_limit:
            return False
        node = self.parent if own > floor else None
        while node is not None:
            if node.in_flight_limit and node.in_flight >= node.in_flight_limit:
                return False
            node = node.parent
        return True

    def put(self, kind: Held, size: int) -> None:
        """Set what is held of *kind* to *size* bytes. Raises: FlowControlError; never when that is fewer."""
        more = size - self.kinds[kind]
        if more > 0:
            self.charge(kind, more)
        elif more:
            self.add(kind, more)

    def clear(self) -> None:
        """Nothing is held here now; for one with nothing below it."""
        for kind in Held:
            if self.kinds[kind]:
                self.add(kind, -self.kinds[kind])


@final
class HeldByObservers:
    """What observers remember, charged to the principals it is remembered for.

    Args: account_of: of a principal; an account is kept here for as long as anything is held for it.
    """

    __slots__ = ("_account_of", "_held")

    def __init__(self, account_of: Callable[[str], Account]) -> None:
        self._account_of = account_of
        self._held: dict[str, tuple[Account, int]] = {}

    def hold(self, principal: str, size: int) -> bool:
        """See :data:`tidegate.spi.HoldFor`. Raises: PluginContractError: fewer than nothing would be held."""
        account, held = self._held.get(principal) or (self._account_of(principal), 0)
        if size > 0 and not account.has_room(size):
            return False
        held += size
        if held < 0:
            raise PluginContractError(
                "an observer",
                f"it let go of {-held} bytes more than it held for {principal or 'nobody'!r}",
            )
        account.add(Held.OBSERVED, size)
        if held:
            self._held[principal] = (account, held)
        else:
            self._held.pop(principal, None)
        return True


class Accounts:
    """The tree.

    Attributes:
        gateway: its root.
        temporary: space that temporary files take.
        stored_memory, unstored_memory: what cursors hold, those that need the store and others.
    """

    def __init__(self, config: BrokerConfig, quotas: Sequence[Quota] = ()) -> None:
        """*quotas*: in file order."""
        self._config = config
        self._quotas = quotas
        self.gateway = Account(
            "the gateway",
            None,
            config.held_limit,
            "broker.held_limit",
            in_flight_limit=config.in_flight_limit,
        )
        self.temporary = TemporarySpace(config.temporary_space, config.temporary_free_limit)
        self.stored_memory = CursorMemory(config.cursor_memory_limit)
        self.unstored_memory = CursorMemory(config.unstored_memory_limit)
        self._meters: dict[str, Meter] = {}
        self._meters_max = METERS_MIN
        self._principals: WeakValueDictionary[str, Account] = WeakValueDictionary()

    def change(self, config: BrokerConfig, quotas: Sequence[Quota]) -> None:
        """Use these limits from now on; nobody loses what it has above them.

        The limits of one connection, and ``receive_rate``, apply to new connections.
        """
        self._config, self._quotas = config, quotas
        gateway, temporary = self.gateway, self.temporary
        gateway.limit, gateway.in_flight_limit = config.held_limit, config.in_flight_limit
        temporary.limit_bytes = config.temporary_space
        temporary.free_limit_bytes = config.temporary_free_limit
        self.stored_memory.limit_bytes = config.cursor_memory_limit
        self.unstored_memory.limit_bytes = config.unstored_memory_limit
        self._meters = {
            name: meter for name, meter in self._meters.items() if name in self._principals
        }
        for name, account in list(self._principals.items()):
            old, new = account.quota, quota_for(quotas, name)
            account.quota, account.limit = new, new.held_limit
            account.in_flight_limit = new.in_flight_limit
            if old is None or old.receive_rate != new.receive_rate:
                self._meters.pop(name, None)
                if new.receive_rate:
                    self._meters[name] = Meter(new.receive_rate)

    def open(self, principal: str, peer: str) -> Account:
        """The account of a new connection. Call its ``clear`` when the connection has ended."""
        return Account(
            f"connection {peer}",
            self.of(principal),
            self._config.connection_held_limit,
            "broker.connection_held_limit",
            in_flight_limit=self._config.connection_held_limit,
        )

    def of(self, principal: str) -> Account:
        """The account of *principal*; it lives as long as somebody has it, or one below it.

        Of "", for something whose owner is unknown, that of the gateway.
        """
        if not principal:
            return self.gateway
        found = self._principals.get(principal)
        if found is None:
            quota = quota_for(self._quotas, principal)
            found = self._principals[principal] = Account(
                f"user {principal}",
                self.gateway,
                quota.held_limit,
                "quotas.held_limit",
                quota,
                quota.in_flight_limit,
            )
            if quota.receive_rate and principal not in self._meters:
                self._forget_meters()
                self._meters[principal] = Meter(quota.receive_rate)
        return found

    def _forget_meters(self) -> None:
        """Of principals that are gone, once they owe nothing: otherwise each reconnection would
        grant another second's worth."""
        if len(self._meters) >= self._meters_max:
            self._meters = {
                name: meter
                for name, meter in self._meters.items()
                if name in self._principals or not meter.is_full
            }
            self._meters_max = max(METERS_MIN, 2 * len(self._meters))

    def meter(self, principal: str) -> Meter | None:
        """Limits how fast *principal* is read; None: nothing does."""
        return self._meters.get(principal)

    def principals(self) -> Iterable[Account]:
        """Those that are connected or hold something."""
        return list(self._principals.values())

    def in_memory(self) -> int:
        """Bytes of memory accounted for."""
        used = self.stored_memory.used + self.unstored_memory.used
        return self.gateway.held + self.gateway.in_flight + used

    def snapshot(self) -> dict[str, int]:
        """What the gateway holds now, by metric.

        Returns: ``held.bytes``, ``held.maximum`` (the high-water mark), ``held.refused`` (how often
            somebody was refused, at any node), ``held.KIND.bytes`` for each kind,
            ``in_flight.bytes`` and ``.maximum``, ``waiting.WHERE.bytes``, ``spooled.bytes``, and
            ``counted.WHAT``.
        """
        gateway = self.gateway
        found = {
            "held.bytes": gateway.held,
            "held.maximum": gateway.peak,
            "held.refused": gateway.refused,
        }
        for kind in Held:
            found[f"held.{kind.name.lower()}.bytes"] = gateway.kinds[kind]
        found["in_flight.bytes"] = gateway.in_flight
        found["in_flight.maximum"] = gateway.in_flight_peak
        found["waiting.stored.bytes"] = self.stored_memory.used
        found["waiting.unstored.bytes"] = self.unstored_memory.used
        found["spooled.bytes"] = self.temporary.used
        for what in Counted:
            found[f"counted.{what.name.lower()}"] = gateway.counts[what]
        return found
