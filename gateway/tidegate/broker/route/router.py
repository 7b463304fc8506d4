"""From a destination to the pending lists its messages go to.

Topic filters are in a trie of levels; what a concrete destination resolves to is cached as a
:class:`Route` until a subscription comes or goes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, compress, groupby
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

from tidegate.broker.lists.pending_list import PendingList
from tidegate.plugin_exit import FAILURES
from tidegate.spi import Message, StoredMessage, names, text_bytes

_log = logging.getLogger("tidegate.broker.router")

_sequence_of: Final = attrgetter("sequence")

#: Cached routes would grow with every topic ever published to, even without subscribers; beyond
#: this many bytes the cache is emptied and refills with what is in use. Room for 80,000 routes with
#: names of usual length.
ROUTES_CACHED_BYTES: Final = 32 << 20
#: What a route takes besides its name, with its place in the cache.
ROUTE_BYTES: Final = 350


#: Subsets of one route's lists that are cached: many selectors make many, but few come often.
NARROWED_CACHED_MAX: Final = 64


#: Messages given to one list in one step, where steps are counted: up to 4 microseconds each.
STEP_MESSAGES: Final = 500

#: From this many lists on, giving them a message counts as work; with fewer it costs less than the publish.
WIDE_MIN: Final = 8


class Route:
    """Where messages of one destination go.

    Attributes:
        stored: lists that the message is stored for, and their ids.
        direct: lists that get it without storing (unstored subscriptions).
        width: number of lists, when they are many; 0: too few to count.
        is_picky: some list refuses messages of its own client, or those its selector leaves out.
        is_for_all: QoS 0 messages go the same way; otherwise volatile is their route, once known.
    """

    __slots__ = (
        "_narrowed",
        "direct",
        "ids",
        "is_for_all",
        "is_picky",
        "stored",
        "volatile",
        "width",
    )

    def __init__(self, stored: Iterable[PendingList], direct: Iterable[PendingList]) -> None:
        self.stored: tuple[PendingList, ...] = tuple(stored)
        self.direct: tuple[PendingList, ...] = tuple(direct)
        width = len(self.stored) + len(self.direct)
        self.width = width if width >= WIDE_MIN else 0
        self.ids: tuple[int, ...] = tuple(pending_list.id for pending_list in self.stored)
        self.is_picky = any(
            pending_list.no_local or pending_list.matches is not None
            for pending_list in (*self.stored, *self.direct)
        )
        self.is_for_all = all(pending_list.is_queue for pending_list in self.stored)
        self.volatile: Route | None = None
        self._narrowed: dict[tuple[bool, ...], Route] = {}

    def without_storing(self) -> Route:
        """The same for a QoS 0 message: only queues store it; subscriptions get it directly."""
        if self.is_for_all:
            return self
        if self.volatile is None:
            stored = [item for item in self.stored if item.is_queue]
            rest = [item for item in self.stored if not item.is_queue]
            self.volatile = Route(stored, (*rest, *self.direct))
        return self.volatile

    def narrowed(self, message: Message, client_key: str) -> Route:
        """The same without lists that do not want *message*, published by the client with *client_key*."""
        key = tuple(
            [
                not (item.no_local and item.client_key == client_key)
                and (item.matches is None or item.matches(message))
                for item in (*self.stored, *self.direct)
            ]
        )
        route = self._narrowed.get(key)
        if route is None:
            count = len(self.stored)
            route = Route(
                compress(self.stored, key[:count]),
                compress(self.direct, key[count:]),
            )
            if len(self._narrowed) < NARROWED_CACHED_MAX:
                self._narrowed[key] = route
        return route


def hand_out(added: Mapping[Route, list[StoredMessage]]) -> None:
    """Durable messages, by route, go to every list, to each in the order of their sequences.

    Several routes of one turn may lead to one list (a filter that covers several topics, messages
    of different QoS): what they bring is merged, because a list takes its messages in order. A list
    whose QoS was raised from 0 within the turn first gets what was direct until then, and lists in
    memory come before stored ones, because a stored one may succeed one of them.
    """
    if len(added) == 1:
        for route, messages in added.items():
            for pending_list in route.stored:
                _offer(pending_list, messages, is_direct=False)
            for pending_list in route.direct:
                _offer(pending_list, messages, is_direct=True)
        return
    _hand_out_groups(*_by_list(added))


def hand_out_in_steps(added: Mapping[Route, list[StoredMessage]]) -> Iterator[None]:
    """The same for a turn that gives very many messages to lists: yields after each step.

    Subscriptions come last, one after another, and those in memory only part by part: nobody else can tell, as
    long as nothing of a later turn comes before. But queues, whose durable messages not only consumers claim, and
    a list that is being replaced, or replaces one, are as prompt as ever.
    """
    stored, direct = _by_list(added)
    alone = [item for item in direct if not item.is_stored and item.succession is None]
    in_memory = {item: direct.pop(item) for item in alone}
    alone = [item for item in stored if not (item.is_queue or item.succession or item in direct)]
    in_store = {item: stored.pop(item) for item in alone}
    _hand_out_groups(stored, direct)
    yield
    for pending_list, groups in in_store.items():
        _offer_merged(pending_list, groups, is_direct=False)
        yield
    for pending_list, groups in in_memory.items():
        messages = _merged(groups)
        for first in range(0, len(messages), STEP_MESSAGES):
            if not (pending_list.consumers or pending_list.is_queue):
                break  # its client has gone, and it is about to end
            _offer(pending_list, messages[first : first + STEP_MESSAGES], is_direct=True)
            yield


_Groups: TypeAlias = dict[PendingList, list[list[StoredMessage]]]


def _by_list(added: Mapping[Route, list[StoredMessage]]) -> tuple[_Groups, _Groups]:
    """What is stored for lists, and what they get without storing."""
    stored: _Groups = {}
    direct: _Groups = {}
    for route, messages in added.items():
        for pending_list in route.stored:
            stored.setdefault(pending_list, []).append(messages)
        for pending_list in route.direct:
            direct.setdefault(pending_list, []).append(messages)
    return stored, direct


def _hand_out_groups(stored: _Groups, direct: _Groups) -> None:
    for pending_list, groups in list(direct.items()):
        raised = pending_list in stored and any(group[0].message.qos for group in groups)
        if raised or not pending_list.is_stored:
            _offer_merged(pending_list, direct.pop(pending_list), is_direct=True)
    for pending_list, groups in stored.items():
        if direct and pending_list in direct:
            _offer_in_order(pending_list, groups, direct.pop(pending_list))
        else:
            _offer_merged(pending_list, groups, is_direct=False)
    for pending_list, groups in direct.items():
        _offer_merged(pending_list, groups, is_direct=True)


def _offer_merged(
    pending_list: PendingList, groups: list[list[StoredMessage]], *, is_direct: bool
) -> None:
    _offer(pending_list, _merged(groups), is_direct=is_direct)


def _offer_in_order(
    pending_list: PendingList, stored: list[list[StoredMessage]], direct: list[list[StoredMessage]]
) -> None:
    """For a stored list that got messages with and without QoS 0 within the turn: its client sees
    the last one last, whatever its QoS."""
    kinds = [(message, False) for message in chain.from_iterable(stored)]
    kinds += [(message, True) for message in chain.from_iterable(direct)]
    kinds.sort(key=lambda kind: kind[0].sequence)
    for is_direct, run in groupby(kinds, key=itemgetter(1)):
        _offer(pending_list, [message for message, _ in run], is_direct=is_direct)


def _merged(groups: list[list[StoredMessage]]) -> list[StoredMessage]:
    if len(groups) == 1:
        return groups[0]
    return sorted(chain.from_iterable(groups), key=_sequence_of)


def _offer(pending_list: PendingList, messages: list[StoredMessage], *, is_direct: bool) -> None:
    try:
        if is_direct:
            pending_list.offer_direct(messages)
        else:
            pending_list.offer(messages)
    except FAILURES:  # one cursor that fails must not keep messages from the other lists
        _log.exception("destination=%s: handing out failed", pending_list.destination)


class _Node:
    __slots__ = ("children", "lists")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.lists: dict[PendingList, None] = {}


class FilterTree:
    """Topic filters by level, for matching a name against many filters at once."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, filter_name: str, pending_list: PendingList) -> None:
        node = self._root
        for level in filter_name.split("."):
            node = node.children.setdefault(level, _Node())
        node.lists[pending_list] = None

    def remove(self, filter_name: str, pending_list: PendingList) -> None:
        """Forget the list; empty branches are pruned."""
        levels = filter_name.split(".")
        path = [self._root]
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        path[-1].lists.pop(pending_list, None)
        for parent, child, level in reversed(list(zip(path, path[1:], levels, strict=False))):
            if child.children or child.lists:
                break
            del parent.children[level]

    def match(self, name: str) -> Iterator[PendingList]:
        """Every list whose filter covers *name*; the rules of :func:`names.matches`."""
        levels = name.split(".")
        nodes = [self._root]
        for position, level in enumerate(levels):
            reached: list[_Node] = []
            wild = position > 0 or not name.startswith("$")  # [MQTT-4.7.2-1]
            for node in nodes:
                children = node.children
                if not children:
                    continue
                if wild:
                    rest = children.get(">")
                    if rest is not None:
                        yield from rest.lists
                    one = children.get("*")
                    if one is not None:
                        reached.append(one)
                exact = children.get(level)
                if exact is not None:
                    reached.append(exact)
            nodes = reached
            if not nodes:
                return
        for node in nodes:
            yield from node.lists
            rest = node.children.get(">")  # "a.>" covers "a" itself
            if rest is not None:
                yield from rest.lists


class Router:
    """Resolves destinations. *queue_list* finds or makes the list of a queue."""

    def __init__(self, queue_list: Callable[[str], PendingList]) -> None:
        self.routes: dict[str, Route] = {}
        self._cached_bytes = 0
        self._queue_list = queue_list
        self._filters = FilterTree()

    def resolve(self, destination: str) -> Route:
        """The route of a canonical, wildcard-free destination; from now on it is in ``routes``."""
        if names.is_queue(destination):
            queue = self._queue_list(destination)
            route = Route((queue,), ()) if queue.is_stored else Route((), (queue,))
        else:
            route = self.topic_route(destination)
        size = ROUTE_BYTES + text_bytes(destination)
        if self._cached_bytes + size > ROUTES_CACHED_BYTES:
            self._forget_all()
        self._cached_bytes += size
        self.routes[destination] = route
        return route

    def topic_route(self, topic: str) -> Route:
        """The route of a canonical topic, neither taken from ``routes`` nor put there."""
        lists = _one_per_client(self._filters.match(names.name_of(topic)))
        return Route(
            (item for item in lists if item.stores),
            (item for item in lists if not item.stores),
        )

    def add_filter(self, pending_list: PendingList) -> None:
        self._filters.add(names.name_of(pending_list.destination), pending_list)
        self._forget(pending_list.destination)

    def remove_filter(self, pending_list: PendingList) -> None:
        self._filters.remove(names.name_of(pending_list.destination), pending_list)
        self._forget(pending_list.destination)

    def _forget(self, filter_destination: str) -> None:
        if names.is_filter(names.name_of(filter_destination)):
            self._forget_all()
        else:
            self.routes.pop(filter_destination, None)

    def _forget_all(self) -> None:
        self.routes.clear()
        self._cached_bytes = 0


def _one_per_client(lists: Iterator[PendingList]) -> list[PendingList]:
    """Of overlapping subscriptions of one MQTT session only the one with the highest QoS gets the
    message, so that the client sees it once [MQTT-3.3.5-1]."""
    best: dict[tuple[str, str] | PendingList, PendingList] = {}
    for item in lists:
        key = item.overlap_key or item
        known = best.get(key)
        if known is None or item.qos > known.qos:
            best[key] = item
    return list(best.values())
