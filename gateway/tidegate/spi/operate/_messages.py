"""What is done to messages of queues, a step at a time; and the answer to what was done."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tidegate.spi.operate._paging import Count


class PurgeDestination(msgspec.Struct, frozen=True, tag="purge-destination"):
    """Remove messages of a queue; they never reach the acknowledged log.

    What is in flight, or locked by a transaction, stays; so does what is published after the request.

    Attributes:
        selector: only messages that it selects; "" for all.
        count_max: 0 for all.
        after, through: of an answer to the same request, to go on; 0 to begin.
    """

    destination: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


class MoveMessages(msgspec.Struct, frozen=True, tag="move-messages"):
    """Move messages of a queue, in order, to the end of another one; both exist.

    They keep everything but their destination, and count as not delivered yet. Other fields, and what stays: see
    :class:`PurgeDestination`. Each is in one of the two queues at any time, also after a crash.
    """

    destination: str
    target: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


class CopyMessages(msgspec.Struct, frozen=True, tag="copy-messages"):
    """Append copies of a queue's messages to another one; see :class:`MoveMessages`.

    What is in flight is copied, too.
    """

    destination: str
    target: str
    selector: str = ""
    count_max: Count = 0
    after: Count = 0
    through: Count = 0


#: Requests that go over messages, and may have to be asked again to go on.
Lengthy: TypeAlias = PurgeDestination | MoveMessages | CopyMessages


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What was asked for has happened, and is durable.

    Attributes:
        count: messages that it was done to.
        is_complete: False: ask again with ``after`` and ``through`` to go on.
        after, through: sequences; how far it came, and where it is to end.
        note: what the operator should know besides, a sentence; "" for nothing.
    """

    count: int = 0
    is_complete: bool = True
    after: int = 0
    through: int = 0
    note: str = ""
