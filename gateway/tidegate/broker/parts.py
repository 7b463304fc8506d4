"""What a broker is made of; each part knows only those below it."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.broker.destinations import Destinations
from tidegate.broker.publish.access import Access
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.publish.retained_delivery import RetainedDeliveries
from tidegate.broker.publish.temporary import TemporaryDestinations
from tidegate.broker.sessions.sessions import Sessions
from tidegate.broker.sessions.wills import Wills
from tidegate.broker.tasks import Tasks
from tidegate.broker.transactions.branches import Branches
from tidegate.broker.transactions.duplicates import DuplicateIds
from tidegate.broker.turn.flow import Flow
from tidegate.broker.turn.writer import TurnWriter
from tidegate.config import BrokerConfig
from tidegate.spi import MessageStore


@dataclass(frozen=True, slots=True)
class Parts:
    """See the module."""

    config: BrokerConfig
    store: MessageStore
    tasks: Tasks
    flow: Flow
    writer: TurnWriter
    destinations: Destinations
    deliveries: RetainedDeliveries
    temporary: TemporaryDestinations
    access: Access
    publisher: Publisher
    duplicates: DuplicateIds
    branches: Branches
    wills: Wills
    sessions: Sessions
