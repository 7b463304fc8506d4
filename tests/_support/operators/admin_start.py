"""What the gateway tells its admin process first, with small limits, for tests that stand for the gateway."""

from __future__ import annotations

from typing import Final

from tidegate.spi.operate import DestinationSort
from tidegate_admin import _protocol as protocol

START: Final = protocol.Start(
    name="gw",
    version="1.2",
    hosts=("gateway.example",),
    certificate="",
    key="",
    health_is_public=True,
    connections_max=10,
    requests_max=2,
    event_streams_max=2,
    request_limit=1000,
    request_timeout=5.0,
    metrics_destinations_max=3,
    metrics_destinations_by=DestinationSort.NAME,
    metrics_destinations="",
    directory="",
)
