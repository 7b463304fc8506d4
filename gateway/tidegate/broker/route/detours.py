"""What publishes take a detour for: rare states that must not cost the usual publish anything.

``BrokerCore.detours`` holds whoever wants to see publishes just now: retained messages that are
being handed over, subscriptions near their limit. While it is empty, which is nearly always, a
publish only finds that it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.spi import Message, names

if TYPE_CHECKING:
    from tidegate.broker.core import BrokerCore
    from tidegate.broker.route.router import Route


def take_detour(core: BrokerCore, message: Message, route: Route) -> Route:
    """Call with the final route of a publish before it is numbered and before it is retained.

    Returns: the route that it really takes.
    Raises: FlowControlError when a subscription is at its limit and refuses more.
    """
    route = core.subscription_limits.admit(route)
    if core.retained_deliveries.active and names.is_topic(message.destination):
        core.retained_deliveries.before_publish(message.destination)
    return route


def check_detours(core: BrokerCore, client_id: str, messages: Iterable[Message]) -> None:
    """Check that *messages* could be published together; nothing changes.

    Raises: FlowControlError; RequestError when a destination is gone.
    """
    routes: list[Route] = []
    for message in messages:
        route = core.resolve(message.destination)
        if message.qos == 0:
            route = route.without_storing()
        if route.is_picky:
            route = route.narrowed(message, client_id)
        routes.append(route)
    core.subscription_limits.check(routes)
