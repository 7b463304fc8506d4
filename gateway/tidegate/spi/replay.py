"""The part of the operator's contract that publishes messages again, exactly once.

A *replay* has an id, a plan that only who asks for it understands, and a position: how far it came. Messages
are published in steps, and each step is durable as a whole together with the position behind it. So who was
killed, or does not know what became of its last request, asks :class:`BeginReplay` again, is told the
position, and goes on there: nothing is published twice, nothing is left out.

What a replay came to is kept until :class:`ForgetReplay`, also when it is complete: beginning it again
finds that there is nothing to do.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import NUMBER_MAX, PRIORITY_DEFAULT

#: Messages of one request at most.
REPLAYED_MAX: Final = 1000
#: Destinations of one :class:`AskDestinations` at most.
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
        position: how far the replay came when this one is published.
        destination: canonical. The others: see :class:`tidegate.spi.Message`; it is not retained,
            and its producer is who asks. *protocol* is what it was made for at first.
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
    """Begin a replay, or hear how far it is.

    Attributes: plan, position: of a new one; what the gateway knows already counts more. Without a plan nothing is
        begun: the answer says that it would be new.
    """

    replay: ReplayId
    plan: Plan = ""
    position: Position = ""


class PublishReplayed(msgspec.Struct, frozen=True, tag="publish-replayed"):
    """Publish messages, in order, as far as there is room and time for them.

    Attributes:
        after: the replay's position. If it is another one by now nothing happens, and the answer says it.
        messages: at most ``REPLAYED_MAX``. None: the replay only goes on to *through*.
        through: the position behind the last of them; "": that message's own.
        is_last: the replay is complete with them.
    """

    replay: ReplayId
    after: Position
    messages: Annotated[tuple[ReplayedMessage, ...], msgspec.Meta(max_length=REPLAYED_MAX)] = ()
    through: Position = ""
    is_last: bool = False


class ForgetReplay(msgspec.Struct, frozen=True, tag="forget-replay"):
    """Keep nothing about a replay any more: with the same id it would begin anew."""

    replay: ReplayId


class AskDestinations(msgspec.Struct, frozen=True, tag="ask-destinations"):
    """Ask whether messages could be published to these destinations; nothing is made or changed."""

    destinations: Annotated[tuple[str, ...], msgspec.Meta(max_length=ASKED_MAX)]


ReplayRequest: TypeAlias = BeginReplay | PublishReplayed | ForgetReplay | AskDestinations


# --- answers -------------------------------------------------------------------------------------


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """How far a replay is, durably.

    Attributes:
        count: messages that it has published.
        is_new: this request has begun it, or without a plan: nothing is known of it.
        problem: why there is no more of what was asked for, "" when there is nothing wrong; kind: the error's
            class, as of one that is no answer.
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
    """Attributes: problems: why a destination takes nothing, by destination; others take messages."""

    problems: dict[str, str] = {}


ReplayAnswer: TypeAlias = Replay | Verdicts
