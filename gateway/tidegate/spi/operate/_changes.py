"""Changing a gateway that runs: its configuration, and whether it lets clients in."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

#: The longest that a drain waits for clients, in seconds.
DRAIN_S_MAX: Final = 86_400
#: Characters of a server reference, and of a bridge's name.
REFERENCE_MAX: Final = 1000
#: Things that a hand-over leaves and that are named one by one.
LEFT_MAX: Final = 100
#: Clients that a drain waits for and that are named one by one.
STILL_HERE_MAX: Final = 20


class ReloadConfiguration(msgspec.Struct, frozen=True, tag="reload-configuration"):
    """Read the configuration file anew, check it as a whole, and apply what can change while the gateway runs.

    An error in the file, or in one that it names, changes nothing; nor does a new listener that cannot bind.

    Attributes: check_only: only say what would change.
    """

    check_only: bool = False


class Change(msgspec.Struct, frozen=True):
    """One thing that is other than before, or is not. Attributes: key: where it is in the file; what: in words."""

    key: str
    what: str


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """What came of it.

    Attributes:
        path: of the file; "": the gateway has none, and only files that listeners and extensions have were read.
        changed: what counts now (with ``check_only``: would count).
        left: what the file says and does not count before the next start, or not for all, and why.
        warnings: what counts and should be looked at: certificates that have expired, or will soon.
    """

    path: str
    changed: tuple[Change, ...] = ()
    left: tuple[Change, ...] = ()
    warnings: tuple[Change, ...] = ()


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Let nobody in any more, and those that are there go when their work is done: see DrainState.

    It begins at once and goes on by itself; asked again, it goes on in the new way. It lasts until `undrain` or
    the gateway's end.

    Attributes:
        server_reference: where clients are to go, ``host:port``; "": they are not told. is_moved: for good.
        timeout_s: how long they may take to acknowledge what they have; then they are disconnected all the same.
        hand_over: the bridge over which every queue goes to another broker when they have gone; "": queues stay.
    """

    server_reference: Annotated[str, msgspec.Meta(max_length=REFERENCE_MAX)] = ""
    is_moved: bool = False
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=DRAIN_S_MAX)] = 30.0
    hand_over: Annotated[str, msgspec.Meta(max_length=REFERENCE_MAX)] = ""


class Undrain(msgspec.Struct, frozen=True, tag="undrain"):
    """Let clients in again, and serve those that have not gone. A hand-over ends: what it has sent is confirmed before."""


class ShowDrain(msgspec.Struct, frozen=True, tag="show-drain"):
    """How far a drain is."""


class HandOverPhase(enum.Enum):
    """How far a hand-over is. WAITING: for clients to go. DONE: no queue has anything that can go. FAILED: its bridge was
    removed or changed meanwhile; what has not gone is in its queues, and it can be asked for again."""

    WAITING = "waiting"
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"


class LeftKind(enum.Enum):
    """What a hand-over leaves: the messages of one QUEUE or SUBSCRIPTION, or so many of the others."""

    QUEUE = "queue"
    SUBSCRIPTION = "subscription"
    EMPTY_SUBSCRIPTIONS = "empty-subscriptions"
    SESSIONS = "sessions"
    RETAINED = "retained"
    WILLS = "wills"
    BRANCHES = "branches"


class LeftHere(msgspec.Struct, frozen=True):
    """What a hand-over leaves. Attributes: name: of the one that it is; count: messages, or how many; why: with what to do."""

    kind: LeftKind
    name: str
    count: int
    why: str


class HandOver(msgspec.Struct, frozen=True):
    """Queues on their way to another broker.

    Attributes:
        bridge: over which; server: what the other broker says that it is, "" while it is not connected.
        moved, moved_bytes: confirmed there since this began, and bytes of their bodies.
        queues, messages: in how many queues something waits that can go, and how much, with what is on the way.
        problem, remedy: why it was not connected last, or what the other broker refused, or why it failed, and what to do;
            problem_at: when, microseconds since the Unix epoch; 0: never, or unknown. Where it is connected it is over.
        left: what is not handed over, at most ``LEFT_MAX`` of them; left_more: how many more there are.
    """

    bridge: str
    phase: HandOverPhase
    server: str
    moved: int
    moved_bytes: int
    queues: int
    messages: int
    problem: str
    remedy: str
    left: tuple[LeftHere, ...]
    left_more: int = 0
    problem_at: int = 0


class StillHere(msgspec.Struct, frozen=True):
    """A client that a drain waits for, with what it has to end.

    Attributes: connection: its number; in_flight: messages that it has not acknowledged; transactions: that it has begun.
    """

    connection: int
    principal: str
    client_id: str
    address: str
    in_flight: int
    transactions: int


class HandsOver(msgspec.Struct, frozen=True):
    """A bridge of this gateway. Attributes: remote: where the other broker is; problem: why it takes no queues, "": it does."""

    name: str
    remote: str
    problem: str


class DrainState(msgspec.Struct, frozen=True, tag="drain-state"):
    """Whether clients are let in.

    Attributes:
        connections: clients that are there; in_flight: messages that they have not acknowledged.
        hand_over: None: none was asked for.
        since, ends_at: when the drain began, and when clients are disconnected all the same, in microseconds since the epoch;
            0: it is none.
        still_here: clients that it waits for, at most ``STILL_HERE_MAX`` of them.
        bridges: that ``hand_over`` of Drain may name, and those that it may not.
        server_reference, is_moved: as in Drain.
    """

    is_draining: bool
    connections: int
    in_flight: int
    server_reference: str = ""
    is_moved: bool = False
    hand_over: HandOver | None = None
    since: int = 0
    ends_at: int = 0
    still_here: tuple[StillHere, ...] = ()
    bridges: tuple[HandsOver, ...] = ()
