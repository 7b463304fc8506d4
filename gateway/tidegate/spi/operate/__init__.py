"""The operator's contract: what can be seen of a running gateway, and done with it.

Everything that an operator uses is made of it: the commands of ``tidegate``, and whatever else answers
people. Each request is a type, each answer is one, both as they travel (:func:`perform`).

Who asks is asked about: each request needs the right ADMIN, and what it does to a destination the
right for that (CREATE, DELETE, CONSUME, BROWSE, PUBLISH); what was done is told to auditors.

No request holds up messaging. One that goes over messages does so in steps, each of which becomes
durable as a whole, and stops when its time is over or something is in the way: its answer says how far it
came, and the same request with ``after`` and ``through`` of the answer goes on.
"""

from __future__ import annotations

from tidegate.spi.operate._contract import (
    METHODS,
    Answer,
    Operator,
    Request,
    perform,
)
from tidegate.spi.operate._destinations import (
    FEEDS_MAX,
    CreateDestination,
    DeleteDestination,
    Destination,
    DestinationDetails,
    DestinationKind,
    DestinationPage,
    DestinationSort,
    Feed,
    ListDestinations,
    PauseDestination,
    ResumeDestination,
    ShowDestination,
    Side,
    Unstored,
)
from tidegate.spi.operate._messages import (
    CopyMessages,
    Done,
    Lengthy,
    MoveMessages,
    PurgeDestination,
)
from tidegate.spi.operate._overview import (
    GatewayState,
    Latency,
    Overview,
    Room,
    ShowOverview,
    Traffic,
)
from tidegate.spi.operate._paging import (
    PAGE_MAX,
    WORK_S,
    Count,
    Limit,
)
from tidegate.spi.operate._sinks import (
    LOG_BODY_MAX,
    CompactSink,
    DamagedRow,
    ListSinks,
    LogRows,
    ReadLog,
    ShowSink,
    SinkDetails,
    SinkList,
    SinkStatus,
    SinkTurn,
)

__all__ = [
    "FEEDS_MAX",
    "LOG_BODY_MAX",
    "METHODS",
    "PAGE_MAX",
    "WORK_S",
    "Answer",
    "CompactSink",
    "CopyMessages",
    "Count",
    "CreateDestination",
    "DamagedRow",
    "DeleteDestination",
    "Destination",
    "DestinationDetails",
    "DestinationKind",
    "DestinationPage",
    "DestinationSort",
    "Done",
    "Feed",
    "GatewayState",
    "Latency",
    "Lengthy",
    "Limit",
    "ListDestinations",
    "ListSinks",
    "LogRows",
    "MoveMessages",
    "Operator",
    "Overview",
    "PauseDestination",
    "PurgeDestination",
    "ReadLog",
    "Request",
    "ResumeDestination",
    "Room",
    "ShowDestination",
    "ShowOverview",
    "ShowSink",
    "Side",
    "SinkDetails",
    "SinkList",
    "SinkStatus",
    "SinkTurn",
    "Traffic",
    "Unstored",
    "perform",
]
