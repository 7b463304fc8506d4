"""The part of the operator's contract that publishes messages again, exactly once.

A *replay* has an id, a plan that only its requester understands, and a position: how far it came. Messages
are published in steps, and each step is durable as a whole together with the position after it. A requester that
was killed, or does not know what became of its last request, sends :class:`BeginReplay` again, learns the
position, and continues there: nothing is published twice, nothing is left out.

The state of a replay is kept until :class:`ForgetReplay`, even when it is complete: beginning it again
finds that there is nothing to do.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import NUMBER_MAX, PRIORITY_DEFAULT

#: Most messages of one request.
REPLAYED_MAX: Final = 1000
#: Most destinations of one :class:`AskDestinations`.
ASKED_MAX: Final = 1000
#: Characters of an id; it is a level of a topic's name.
REPLAY_ID_MAX: Final = 64
#: Characters of a plan: it is written with each step.
PLAN_MAX: Final = 16 << 10

ReplayId: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=REPLAY_ID_MAX, pattern=r"\A[A-Za-z0-9_-]+\Z")
]
Plan: TypeAlias = Annotated[str, msgspec.Meta(max_length=PLAN_MAX)]
Position: TypeAlias = Annotated[str, msgspec.Meta(max_length=200)]


class ReplayedMessage(msgspec.Struct, frozen=True, array_like=True):
    """One message to be published.

    Attributes:
        position: how far the replay is when this message is published.
        destination: canonical. For the others see :class:`tidegate.spi.Message`; the message is not
            retained, and its producer is the requester. *protocol* is the one it was first made for.
    """

    position: Position
    destination: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    expires_at: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] = 0
    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = PRIORITY_DEFAULT
    persistent: bool = True
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)] = 2
    content_type: str | None = None
    correlation_data: bytes | None = None
    reply_to: str = ""
    protocol: str = ""
    original_name: str = ""
    payload_format: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None


# --- requests ------------------------------------------------------------------------------------


class BeginReplay(msgspec.Struct, frozen=True, tag="begin-replay"):
    """Begin a replay, or ask how far it is.

    Attributes: plan, position: for a new replay; what the gateway already knows takes precedence. Without a plan
        nothing is begun: the answer says that the replay would be new.
    """

    replay: ReplayId
    plan: Plan = ""
    position: Position = ""


class PublishReplayed(msgspec.Struct, frozen=True, tag="publish-replayed"):
    """Publish messages, in order, as far as there is room and time for them.

    Attributes:
        after: the replay's position. If it has changed, nothing happens, and the answer says so.
        messages: at most ``REPLAYED_MAX``. Empty: the replay only advances to *through*.
        through: the position after the last of them; "": that message's own.
        is_last: the replay is complete with them.
    """

    replay: ReplayId
    after: Position
    messages: Annotated[tuple[ReplayedMessage, ...], msgspec.Meta(max_length=REPLAYED_MAX)] = ()
    through: Position = ""
    is_last: bool = False


class ForgetReplay(msgspec.Struct, frozen=True, tag="forget-replay"):
    """Forget a replay: beginning one with the same id would start over."""

    replay: ReplayId


class AskDestinations(msgspec.Struct, frozen=True, tag="ask-destinations"):
    """Ask whether messages could be published to these destinations; nothing is created or changed."""

    destinations: Annotated[tuple[str, ...], msgspec.Meta(max_length=ASKED_MAX)]


ReplayRequest: TypeAlias = BeginReplay | PublishReplayed | ForgetReplay | AskDestinations


# --- answers -------------------------------------------------------------------------------------


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """How far a replay is, durably.

    Attributes:
        count: messages that it has published.
        is_new: this request has begun it; or, without a plan: nothing is known of it.
        problem: why less was done than requested, "" when nothing is wrong; kind: class of the error, as if it
            had been raised.
    """

    replay: str
    plan: str
    position: str
    count: int = 0
    is_complete: bool = False
    is_new: bool = False
    problem: str = ""
    kind: str = ""


class Verdicts(msgspec.Struct, frozen=True, tag="verdicts"):
    """Attributes: problems: why a destination takes nothing, by destination; all others take messages."""

    problems: dict[str, str] = {}


ReplayAnswer: TypeAlias = Replay | Verdicts
