"""Who may do what, by which rule, and whom the authenticators know."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.spi.clients.security import Action, Verdict
from tidegate.spi.operate._paging import Limit


class ExplainAccess(msgspec.Struct, frozen=True, tag="explain-access"):
    """What somebody may do with a destination, and why.

    Attributes:
        user: known or not; ``anonymous`` for clients without a name.
        destination: ``queue://NAME`` or ``topic://NAME``, with wildcards only for actions that subscribe;
            "": actions that concern no destination (CONNECT, ADMIN).
        groups: its groups; empty: those that the authenticators, or its connections, say.
        client_id, address: "": no client, no address; rules about these do not match then.
    """

    user: str
    destination: str = ""
    groups: tuple[str, ...] = ()
    client_id: str = ""
    address: str = ""


class Reason(msgspec.Struct, frozen=True):
    """What one authorizer says. Attributes: why: in its own words; () when it gives no reasons."""

    authorizer: str
    verdict: Verdict
    why: tuple[str, ...]


class Decided(msgspec.Struct, frozen=True):
    """The decision about one action: ALLOW when all authorizers allow it.

    Attributes: reasons: of each authorizer; empty when there is none and everything is allowed.
    """

    action: Action
    verdict: Verdict
    reasons: tuple[Reason, ...]


class AccessDetails(msgspec.Struct, frozen=True, tag="access-details"):
    """What somebody may do. Attributes: groups: those that were checked."""

    user: str
    groups: tuple[str, ...]
    destination: str
    decided: tuple[Decided, ...]


class ListAccess(msgspec.Struct, frozen=True, tag="list-access"):
    """What everybody may do with one destination, a page at a time, by name.

    Everybody: users that an authenticator lists, connected users, and ``anonymous``; checked without client
    id and address. Attributes: match: text in the name, ignoring case; "" for all.
    """

    destination: str
    match: str = ""
    after: str = ""
    limit: Limit = 100


class AccessRow(msgspec.Struct, frozen=True):
    """A row of a list. Attributes: connections: how many it has now; verdicts: by action."""

    user: str
    groups: tuple[str, ...]
    connections: int
    verdicts: Mapping[str, Verdict]


class AccessPage(msgspec.Struct, frozen=True, tag="access-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[AccessRow, ...]
    next: str = ""


class ListRules(msgspec.Struct, frozen=True, tag="list-rules"):
    """The rules that authorizers decide by, as they are now, a page at a time, in the order of evaluation.

    Attributes: match: text in one of its patterns, or in whom it is about, ignoring case; "" for all; action:
        only rules about it.
    """

    match: str = ""
    action: Action | None = None
    after: str = ""
    limit: Limit = 100


class RuleRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: authorizer: whose rule it is; source: where it is written; others: see :class:`tidegate.spi.AccessRule`.
    """

    authorizer: str
    source: str
    number: int
    line: int
    allows: bool
    actions: tuple[Action, ...]
    destinations: tuple[str, ...] | None
    who: Mapping[str, tuple[str, ...]]


class RulePage(msgspec.Struct, frozen=True, tag="rule-page"):
    """Rows of a list.

    Attributes: authorizers: the configured ones, each of which must allow an action; empty: everything is allowed.
        unlisted: those that do not list their rules; next: ``after`` of the next page; "" when there are no more.
    """

    rows: tuple[RuleRow, ...]
    authorizers: tuple[str, ...]
    unlisted: tuple[str, ...]
    next: str = ""


class ListUsers(msgspec.Struct, frozen=True, tag="list-users"):
    """Users that authenticators list, without secrets, a page at a time, by name.

    Attributes: match: text in the name, ignoring case; "" for all.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class UserRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: authenticator: that knows it; checks: how it is authenticated: ``argon2id``, ``SCRAM-SHA-256`` …;
        connections: how many it has now.
    """

    user: str
    groups: tuple[str, ...]
    authenticator: str
    checks: tuple[str, ...]
    connections: int


class UserPage(msgspec.Struct, frozen=True, tag="user-page"):
    """Rows of a list.

    Attributes: unlisted: authenticators that have users but cannot list them; next: ``after`` of the next
        page; "" when there are no more.
    """

    rows: tuple[UserRow, ...]
    unlisted: tuple[str, ...]
    next: str = ""
