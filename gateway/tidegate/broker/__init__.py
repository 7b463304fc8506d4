"""The broker core: destinations, routing, dispatch, transactions, sessions, flow control."""

from __future__ import annotations

from tidegate.broker._acknowledged import AcknowledgedLog
from tidegate.broker._core import BrokerCore

__all__ = ["AcknowledgedLog", "BrokerCore"]
