"""One tree in which everything is counted that is held in memory for somebody, in bytes.

::

    gateway                    broker.held_limit
    ├── principal alice        broker.principal_held_limit
    │   ├── connection …       broker.connection_held_limit
    │   └── connection …
    └── principal bob

Counted is what is *held*: what a client has begun and not ended, what it wrote and does not read
the answer to, what stays when it has gone. A message that only passes is not: its turn is bounded
by ``broker.pending_write_limit``, and its place in a list by the cursor.

What is charged to a node counts for all above it. Whoever asks for more than one of them has is
refused (:class:`FlowControlError`) and told which limit it was; nothing is counted then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final
from weakref import WeakValueDictionary

from tidegate.config import BrokerConfig
from tidegate.spi import FlowControlError, Held, format_size

_KINDS: Final = len(Held)


@final
class Account:
    """A node of the tree.

    Args:
        name: for errors and metrics.
        parent: what it counts for, too; None for the root.
        limit: bytes, 0: only those above it limit.
        option: sets the limit.

    Attributes:
        held: bytes, with those of the nodes below; peak: the most that there ever were.
        refused: how often, here or below, more was asked for than there was room for.
        kinds: *held* by :class:`Held`.
    """

    __slots__ = (
        "__weakref__",
        "held",
        "kinds",
        "limit",
        "name",
        "option",
        "parent",
        "peak",
        "refused",
    )

    def __init__(self, name: str, parent: Account | None, limit: int, option: str) -> None:
        self.name = name
        self.parent = parent
        self.limit = limit
        self.option = option
        self.held = 0
        self.peak = 0
        self.refused = 0
        self.kinds = [0] * _KINDS

    def charge(self, kind: Held, size: int) -> None:
        """Count *size* bytes more, 0 or more. Raises: FlowControlError; then nothing is counted."""
        node: Account | None = self
        while node is not None:
            if node.limit and node.held + size > node.limit:
                raise node.refuse(size)
            node = node.parent
        self.add(kind, size)

    def refuse(self, size: int) -> FlowControlError:
        """The error for somebody who asked for *size* bytes, counted up to the root."""
        node: Account | None = self
        while node is not None:
            node.refused += 1
            node = node.parent
        return FlowControlError(
            f"{self.name} holds {self.held} bytes, and {size} more would be above"
            f" {self.option} = {format_size(self.limit)}"
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

    def put(self, kind: Held, size: int) -> None:
        """From now on *size* bytes of *kind*. Raises: FlowControlError; what is fewer never does."""
        more = size - self.kinds[kind]
        if more > 0:
            self.charge(kind, more)
        elif more:
            self.add(kind, more)

    def clear(self) -> None:
        """Nothing is held here any more (and below)."""
        for kind in Held:
            if self.kinds[kind]:
                self.add(kind, -self.kinds[kind])


class Accounts:
    """The tree. Attributes: gateway: its root."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.gateway = Account("the gateway", None, config.held_limit, "broker.held_limit")
        self._principals: WeakValueDictionary[str, Account] = WeakValueDictionary()

    def open(self, principal: str, peer: str) -> Account:
        """The account of a new connection. Call its ``clear`` when that has ended."""
        return Account(
            f"connection {peer}",
            self.of(principal),
            self._config.connection_held_limit,
            "broker.connection_held_limit",
        )

    def of(self, principal: str) -> Account:
        """The account of *principal*; there is one as long as somebody has it, or one below."""
        found = self._principals.get(principal)
        if found is None:
            found = self._principals[principal] = Account(
                f"user {principal}",
                self.gateway,
                self._config.principal_held_limit,
                "broker.principal_held_limit",
            )
        return found

    def principals(self) -> Iterable[Account]:
        """Those that are connected or hold something."""
        return list(self._principals.values())

    def snapshot(self) -> dict[str, int]:
        """What the gateway holds now, by metric.

        Returns: ``held.bytes``, ``held.maximum`` (the high-water mark), ``held.refused`` (how often
            somebody was refused, at any node) and ``held.KIND.bytes`` for each kind.
        """
        gateway = self.gateway
        found = {
            "held.bytes": gateway.held,
            "held.maximum": gateway.peak,
            "held.refused": gateway.refused,
        }
        for kind in Held:
            found[f"held.{kind.name.lower()}.bytes"] = gateway.kinds[kind]
        return found
