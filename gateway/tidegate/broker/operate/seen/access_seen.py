"""Plugins, users, and their rights, as operators see them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final

from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import Key, in_steps, page
from tidegate.broker.operate.seen.connections_operated import is_in
from tidegate.broker.sessions.authentication import ANONYMOUS
from tidegate.spi import (
    AccessRule,
    Action,
    Authenticator,
    EnhancedAuthenticator,
    Identity,
    RequestError,
    RuleList,
    UserList,
    Verdict,
    names,
)
from tidegate.spi.operate import (
    AccessDetails,
    AccessPage,
    AccessRow,
    BridgePage,
    BridgeRow,
    Decided,
    ExplainAccess,
    ListAccess,
    ListBridges,
    ListPlugins,
    ListRules,
    ListUsers,
    PluginPage,
    PluginRow,
    Reason,
    RulePage,
    RuleRow,
    UserPage,
    UserRow,
)

#: Actions without a destination.
_NOWHERE: Final = (Action.CONNECT, Action.ADMIN)
#: More rules than an authorizer has.
_RULES_MAX: Final = 1 << 32
#: Actions on a queue, and on a topic; the first can be asked about for a filter, too.
_OF_QUEUE: Final = (Action.CONSUME, Action.BROWSE, Action.PUBLISH, Action.CREATE, Action.DELETE)
_OF_TOPIC: Final = (Action.SUBSCRIBE, Action.PUBLISH, Action.RETAIN)
_OF_FILTER: Final = frozenset({Action.CONSUME, Action.BROWSE, Action.SUBSCRIBE})


class AccessSeen(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about who and what is configured."""

    async def list_plugins(self, who: Identity, request: ListPlugins) -> PluginPage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(row: PluginRow) -> Key | None:
            if request.active and not row.is_active:
                return None
            if not is_in(match, (f"{row.kind}-{row.name}", row.distribution)):
                return None
            return 0, f"{row.kind} {row.name} {row.distribution}"

        rows, following = await page(self._around.plugins(), key, request.after, request.limit)
        return PluginPage(tuple(rows), following)

    async def list_bridges(self, who: Identity, request: ListBridges) -> BridgePage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()

        def key(row: BridgeRow) -> Key | None:
            texts = (row.bridge, row.rule, row.remote, row.source, row.target)
            return (0, f"{row.bridge} {row.rule}") if is_in(match, texts) else None

        rows, following = await page(self._around.bridges(), key, request.after, request.limit)
        return BridgePage(tuple(rows), following)

    async def list_users(self, who: Identity, request: ListUsers) -> UserPage:
        """See Operator."""
        self._authorize(who)
        match, lists = request.match.casefold(), self._lists()
        everybody = [
            (name, place) for place, item in enumerate(lists) for name in item.user_names()
        ]

        def key(entry: tuple[str, int]) -> Key | None:
            return (0, f"{entry[0]} {entry[1]}") if is_in(match, entry[:1]) else None

        shown, following = await page(everybody, key, request.after, request.limit)
        connected = await self._connected()

        def row(entry: tuple[str, int]) -> UserRow | None:
            source = lists[entry[1]]
            found = source.known_user(entry[0])
            if found is None:
                return None
            groups = tuple(sorted(found.groups))
            return UserRow(found.name, groups, repr(source), found.checks, connected[found.name])

        rows = await in_steps(shown, row)
        return UserPage(tuple(rows), tuple(self._unlisted()), following)

    async def explain_access(self, who: Identity, request: ExplainAccess) -> AccessDetails:
        """See Operator."""
        self._authorize(who)
        destination = request.destination
        actions = _actions(destination)
        groups = frozenset(request.groups) or (await self._groups()).get(request.user, frozenset())
        asked = Identity(request.user, groups, request.client_id, request.address, "")
        decided: list[Decided] = []
        for action in actions:
            decided.append(self._decided(asked, action, destination))
            await asyncio.sleep(0)  # a filter may take an authorizer some milliseconds
        return AccessDetails(request.user, tuple(sorted(groups)), destination, tuple(decided))

    async def list_access(self, who: Identity, request: ListAccess) -> AccessPage:
        """See Operator."""
        self._authorize(who)
        destination, match = request.destination, request.match.casefold()
        actions = _actions(destination)
        if not destination or names.is_filter(names.name_of(destination)):
            raise RequestError("give one queue or topic, without wildcards")
        groups, connected = await self._groups(), await self._connected()

        def key(name: str) -> Key | None:
            return (0, name) if is_in(match, (name,)) else None

        groups.setdefault(ANONYMOUS, frozenset())
        shown, following = await page(list(groups), key, request.after, request.limit)

        def row(name: str) -> AccessRow:
            mine = groups.get(name, frozenset())
            asked = Identity(name, mine, "", "", "")
            verdicts = {
                action.value: self._decided(asked, action, destination).verdict
                for action in actions
            }
            return AccessRow(name, tuple(sorted(mine)), connected[name], verdicts)

        return AccessPage(tuple(await in_steps(shown, row)), following)

    async def list_rules(self, who: Identity, request: ListRules) -> RulePage:
        """See Operator."""
        self._authorize(who)
        match, authorizers = request.match.casefold(), self._core.access.authorizers

        def key(entry: tuple[int, RuleList, AccessRule]) -> Key | None:
            place, _, rule = entry
            if request.action is not None and request.action not in rule.actions:
                return None
            texts = (*(rule.destinations or ()), *chain.from_iterable(rule.who.values()))
            if match and not is_in(match, texts):
                return None
            return place * _RULES_MAX + rule.number, ""

        entries = (
            (place, item, rule)
            for place, item in enumerate(authorizers)
            if isinstance(item, RuleList)
            for rule in item.access_rules()
        )
        shown, following = await page(entries, key, request.after, request.limit)

        def row(entry: tuple[int, RuleList, AccessRule]) -> RuleRow:
            _, item, rule = entry
            return RuleRow(
                repr(item),
                item.rules_source(),
                rule.number,
                rule.line,
                rule.allows,
                rule.actions,
                rule.destinations,
                rule.who,
            )

        rows = await in_steps(shown, row)
        unlisted = [repr(item) for item in authorizers if not isinstance(item, RuleList)]
        return RulePage(
            tuple(rows), tuple(repr(item) for item in authorizers), tuple(unlisted), following
        )

    # --- deciding --------------------------------------------------------------------------------

    def _decided(self, asked: Identity, action: Action, destination: str) -> Decided:
        """What :meth:`tidegate.broker.publish.access.Access.decide` would say, from scratch."""
        if names.is_temporary(destination):
            return Decided(action, Verdict.ALLOW, ())  # no authorizer is asked
        access, reasons, verdict = self._core.access, list[Reason](), Verdict.ALLOW
        for authorizer in access.authorizers:
            found = access.ask(authorizer, asked, action, destination)
            why = access.reasons(authorizer, asked, action, destination)
            reasons.append(Reason(repr(authorizer), found, why))
            if verdict is Verdict.ALLOW or found is Verdict.DENY:
                verdict = found  # the strictest
        return Decided(action, verdict, tuple(reasons))

    # --- users -----------------------------------------------------------------------------------

    def _lists(self) -> list[UserList]:
        return [item for item in self._core.extensions if isinstance(item, UserList)]

    def _unlisted(self) -> Iterator[str]:
        for item in self._core.extensions:
            is_asked = isinstance(item, Authenticator | EnhancedAuthenticator)
            if is_asked and not isinstance(item, UserList):
                yield repr(item)

    async def _connected(self) -> Counter[str]:
        """Connections by user."""
        return Counter(
            await in_steps(
                list(self._core.connections),
                lambda item: None if item.is_closed else item.principal,
            )
        )

    async def _groups(self) -> dict[str, frozenset[str]]:
        """Known users and their groups; from a connection, if there is one."""
        found: dict[str, frozenset[str]] = {}
        for item in self._lists():
            users = await in_steps(list(item.user_names()), item.known_user)
            for user in users:
                found.setdefault(user.name, user.groups)
        identities = await in_steps(
            list(self._core.connections), lambda item: None if item.is_closed else item.identity
        )
        for identity in identities:
            found[identity.principal] = identity.groups
        return found


def _actions(destination: str) -> tuple[Action, ...]:
    """What can be done there. Raises: RequestError for an invalid name."""
    if not destination:
        return _NOWHERE
    if not (names.is_queue(destination) or names.is_topic(destination)):
        raise RequestError(f"{destination!r} is neither queue://NAME nor topic://NAME")
    name = names.name_of(destination)
    try:
        names.check_filter(name)
    except ValueError as error:
        raise RequestError(str(error)) from None
    actions = _OF_QUEUE if names.is_queue(destination) else _OF_TOPIC
    if names.is_filter(name):
        return tuple(action for action in actions if action in _OF_FILTER)
    return actions
