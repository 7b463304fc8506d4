"""Changing a running gateway: its configuration, and whether it lets clients in."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

#: Longest time a drain waits for clients, in seconds.
DRAIN_S_MAX: Final = 86_400
#: Characters of a server reference, or of a bridge's name.
REFERENCE_MAX: Final = 1000
#: Items left by a hand-over that are named one by one.
LEFT_MAX: Final = 100
#: Clients awaited by a drain that are named one by one.
STILL_HERE_MAX: Final = 20


class ReloadConfiguration(msgspec.Struct, frozen=True, tag="reload-configuration"):
    """Reread the configuration file, check it as a whole, and apply what can change while the gateway runs.

    An error in the file, or in a file that it names, changes nothing; nor does a new listener that cannot bind.

    Attributes: check_only: only report what would change.
    """

    check_only: bool = False


class Change(msgspec.Struct, frozen=True):
    """One difference, applied or not. Attributes: key: where it is in the file; what: in words."""

    key: str
    what: str


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """The result of a reload.

    Attributes:
        path: of the file; "": the gateway has none, and only files of listeners and extensions were reread.
        changed: what is in force now (with ``check_only``: would be).
        left: what the file says but does not take effect before the next start, or not for all, and why.
        warnings: what is in force but needs attention: certificates that have expired, or will soon.
    """

    path: str
    changed: tuple[Change, ...] = ()
    left: tuple[Change, ...] = ()
    warnings: tuple[Change, ...] = ()


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Let nobody in any more; connected clients leave when their work is done: see DrainState.

    It begins at once and continues by itself; a repeated request changes how. It lasts until `undrain` or
    the gateway's end.

    Attributes:
        server_reference: where clients should go, ``host:port``; "": they are not told. is_moved: permanently.
        timeout_s: how long they may take to acknowledge what they have; then they are disconnected anyway.
        hand_over: the bridge that carries every queue to another broker once they have left; "": queues stay.
    """

    server_reference: Annotated[str, msgspec.Meta(max_length=REFERENCE_MAX)] = ""
    is_moved: bool = False
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=DRAIN_S_MAX)] = 30.0
    hand_over: Annotated[str, msgspec.Meta(max_length=REFERENCE_MAX)] = ""


class Undrain(msgspec.Struct, frozen=True, tag="undrain"):
    """Let clients in again, and serve those still connected. A hand-over ends once what it has sent is confirmed."""


class ShowDrain(msgspec.Struct, frozen=True, tag="show-drain"):
    """How far a drain is."""


class HandOverPhase(enum.Enum):
    """How far a hand-over is. WAITING: for clients to leave. DONE: no queue has anything left that can go. FAILED: its
    bridge was removed or changed; what has not gone is still in its queues, and it can be requested again."""

    WAITING = "waiting"
    MOVING = "moving"
    DONE = "done"
    FAILED = "failed"


class LeftKind(enum.Enum):
    """What a hand-over leaves: the messages of one QUEUE or SUBSCRIPTION, or a number of other things."""

    QUEUE = "queue"
    SUBSCRIPTION = "subscription"
    EMPTY_SUBSCRIPTIONS = "empty-subscriptions"
    SESSIONS = "sessions"
    RETAINED = "retained"
    WILLS = "wills"
    BRANCHES = "branches"


class LeftHere(msgspec.Struct, frozen=True):
    """What a hand-over leaves. Attributes: name: of the one thing; count: messages, or things; why: and what to do."""

    kind: LeftKind
    name: str
    count: int
    why: str


class HandOver(msgspec.Struct, frozen=True):
    """Queues on their way to another broker.

    Attributes:
        bridge: that carries them; server: what the other broker calls itself, "" while not connected.
        moved, moved_bytes: messages confirmed there since this began, and bytes of their bodies.
        queues, messages: how many queues have messages that can go, and how many those are, including any on their
            way.
        problem, remedy: why it last failed to connect, or what the other broker refused, or why it failed, and what
            to do; problem_at: when, microseconds since the Unix epoch; 0: never, or unknown. Once connected, the
            problem is over.
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
    """A client that a drain waits for, and what it still has to finish.

    Attributes: connection: its number; in_flight: messages it has not acknowledged; transactions: open ones.
    """

    connection: int
    principal: str
    client_id: str
    address: str
    in_flight: int
    transactions: int


class HandsOver(msgspec.Struct, frozen=True):
    """A bridge of this gateway. Attributes: remote: the other broker; problem: why it takes no queues; "": it does."""

    name: str
    remote: str
    problem: str


class DrainState(msgspec.Struct, frozen=True, tag="drain-state"):
    """Whether clients are let in.

    Attributes:
        connections: connected clients; in_flight: messages they have not acknowledged.
        hand_over: None when none was requested.
        since, ends_at: when the drain began, and when clients are disconnected regardless, in microseconds since
            the epoch; 0: not draining.
        still_here: clients that it waits for, at most ``STILL_HERE_MAX`` of them.
        bridges: those that ``hand_over`` of Drain may name, and those that it may not.
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
