"""Who may do what, by which rule, and who the authenticators know."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.spi.clients.security import Action, Verdict
from tidegate.spi.operate._paging import Limit


class ExplainAccess(msgspec.Struct, frozen=True, tag="explain-access"):
    """What somebody may do with a destination, and why.

    Attributes:
        user: whether anybody of this name is known or not; ``anonymous`` for clients without one.
        destination: ``queue://NAME`` or ``topic://NAME``, perhaps with wildcards, which are asked of what may
            be subscribed to; "": what is done to no destination (CONNECT, ADMIN).
        groups: that it is in; none: those that the authenticators, or its connections, say.
        client_id, address: "": of no client, from nowhere; rules about these do not fit then.
    """

    user: str
    destination: str = ""
    groups: tuple[str, ...] = ()
    client_id: str = ""
    address: str = ""


class Reason(msgspec.Struct, frozen=True):
    """What one authorizer says. Attributes: why: in its own words; () where it gives no reasons."""

    authorizer: str
    verdict: Verdict
    why: tuple[str, ...]


class Decided(msgspec.Struct, frozen=True):
    """What is decided about one action: ALLOW where all authorizers allow it.

    Attributes: reasons: of each authorizer; none where nobody is asked, and all is allowed.
    """

    action: Action
    verdict: Verdict
    reasons: tuple[Reason, ...]


class AccessDetails(msgspec.Struct, frozen=True, tag="access-details"):
    """What somebody may do. Attributes: groups: that were asked with."""

    user: str
    groups: tuple[str, ...]
    destination: str
    decided: tuple[Decided, ...]


class ListAccess(msgspec.Struct, frozen=True, tag="list-access"):
    """What everybody may do with one destination, a page at a time, by name.

    Everybody is who an authenticator lists, who is connected, and ``anonymous``; asked without client id and
    address. Attributes: match: what the name has in it, whatever its case; "" for all.
    """

    destination: str
    match: str = ""
    after: str = ""
    limit: Limit = 100


class AccessRow(msgspec.Struct, frozen=True):
    """A row of a list. Attributes: connections: that it has now; verdicts: by action."""

    user: str
    groups: tuple[str, ...]
    connections: int
    verdicts: Mapping[str, Verdict]


class AccessPage(msgspec.Struct, frozen=True, tag="access-page"):
    """Rows of a list. Attributes: next: what to ask for as ``after``; "" when there are no more."""

    rows: tuple[AccessRow, ...]
    next: str = ""


class ListRules(msgspec.Struct, frozen=True, tag="list-rules"):
    """The rules that authorizers decide by, as they have them now, a page at a time, in the order in which they are asked.

    Attributes: match: what one of its patterns, or of whom it is about, has in it, whatever its case; "" for all; action: only rules about it.
    """

    match: str = ""
    action: Action | None = None
    after: str = ""
    limit: Limit = 100


class RuleRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: authorizer: whose it is; source: where it is written; others: see :class:`tidegate.spi.AccessRule`.
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

    Attributes: authorizers: that are asked, each of which must allow it; none: all is allowed. unlisted: those of them that do not say
        by which rules; next: what to ask for as ``after``; "" when there are no more.
    """

    rows: tuple[RuleRow, ...]
    authorizers: tuple[str, ...]
    unlisted: tuple[str, ...]
    next: str = ""


class ListUsers(msgspec.Struct, frozen=True, tag="list-users"):
    """Users that authenticators list, a page at a time, by name: no secrets.

    Attributes: match: what the name has in it, whatever its case; "" for all.
    """

    match: str = ""
    after: str = ""
    limit: Limit = 100


class UserRow(msgspec.Struct, frozen=True):
    """A row of a list.

    Attributes: authenticator: that knows it; checks: what it is let in by: ``argon2id``, ``SCRAM-SHA-256`` …;
        connections: that it has now.
    """

    user: str
    groups: tuple[str, ...]
    authenticator: str
    checks: tuple[str, ...]
    connections: int


class UserPage(msgspec.Struct, frozen=True, tag="user-page"):
    """Rows of a list.

    Attributes: unlisted: authenticators that know users, but not which there are; next: what to ask for as
        ``after``; "" when there are no more.
    """

    rows: tuple[UserRow, ...]
    unlisted: tuple[str, ...]
    next: str = ""
