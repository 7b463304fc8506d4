"""The broker core: destinations, routing, dispatch, transactions, sessions, flow control."""

from __future__ import annotations

from tidegate.broker.core import BrokerCore
from tidegate.broker.limits.acknowledged import AcknowledgedLog

__all__ = ["AcknowledgedLog", "BrokerCore"]
