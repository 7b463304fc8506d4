"""One session: what outlives a connection."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tidegate.spi import Identity, InflightDirection, InflightRecord, Session, StoredMessage

#: Options kept with a stored session: what else than its fields say who the client was. A will that
#: only the gateway's next run publishes is authorized by them.
GROUPS_OPTION: Final = "groups"  # a JSON list
ADDRESS_OPTION: Final = "address"

#: And this one, for a client that :attr:`tidegate.spi.ClientRules.delivers_once` is said of.
ONCE_OPTION: Final = "delivers-once"

#: By name of the subscription, its messages in doubt, in order.
InDoubt: TypeAlias = dict[str, list[StoredMessage]]

Inflight: TypeAlias = dict[tuple[InflightDirection, int], InflightRecord]


@dataclass(slots=True, eq=False, repr=False)
class SessionState:
    """A session: its stored part, its subscriptions and packet-id states.

    Attributes:
        inflight: stored packet-id states by (direction, packet id).
        connection: the one that has it now, if any.
        is_removed: it is over.
        left_at: when its last connection ended, by :meth:`TurnWriter.elapsed`: its expiry and the
            delay of its will run from there, whatever the wall clock does.
        in_doubt: by name of a shared subscription, QoS 2 messages whose handshake its last
            connection left unfinished (:mod:`tidegate.broker.sessions.in_doubt`).
    """

    stored: Session
    inflight: Inflight = field(default_factory=Inflight)
    connection: object = None
    is_removed: bool = False
    left_at: int = 0
    in_doubt: InDoubt = field(default_factory=InDoubt)

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

    def records(self) -> list[InflightRecord]:
        """Every packet-id state that a resumed connection must know, in the order they began."""
        return list(self.inflight.values())


def identity_options(identity: Identity) -> dict[str, str]:
    """What a stored session keeps of *identity* besides its fields, where there is any."""
    options: dict[str, str] = {}
    if identity.groups:
        options[GROUPS_OPTION] = json.dumps(sorted(identity.groups))
    if identity.address:
        options[ADDRESS_OPTION] = identity.address
    return options
