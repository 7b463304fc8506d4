"""Plugins, users, and who may do what, as operators see them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pytest
from broker_harness import Broker
from operated import ME, Guard

from tidegate.broker.operate.authorized import Around
from tidegate.broker.operate.operations import Operations
from tidegate.spi import (
    AccessError,
    AccessRule,
    Action,
    AuditKind,
    Credentials,
    Explanation,
    Identity,
    KnownUser,
    Principal,
    RequestError,
    Verdict,
)
from tidegate.spi.operate import (
    AccessDetails,
    AccessRow,
    BridgeRow,
    ExplainAccess,
    ListAccess,
    ListBridges,
    ListPlugins,
    ListRules,
    ListUsers,
    PluginRow,
    RulePage,
    RuleRow,
    perform,
)

A = "queue://a"


class People:
    """Knows some users, and lists them."""

    def __init__(self, **users: str) -> None:
        self.users = {name: frozenset(groups.split()) for name, groups in users.items()}

    def __repr__(self) -> str:
        return "people"

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        name = credentials.username
        return Principal(name, self.users.get(name, frozenset())) if name else None

    def user_names(self) -> Collection[str]:
        return [*self.users, "gone"]

    def known_user(self, name: str) -> KnownUser | None:
        return KnownUser(name, self.users[name], ("argon2id",)) if name in self.users else None


class Silent:
    """Knows users and does not list them."""

    def __repr__(self) -> str:
        return "silent"

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return None


class Groups:
    """Lets a group publish, everybody consume in part, and says why."""

    def __init__(self) -> None:
        self.asked: list[Identity] = []

    def __repr__(self) -> str:
        return "groups"

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        return self.explain(identity, action, destination).verdict

    def explain(self, identity: Identity, action: Action, destination: str) -> Explanation:
        self.asked.append(identity)
        if identity.protocol or action in (Action.CONNECT, Action.ADMIN):
            return Explanation(Verdict.ALLOW, ("whoever",))
        if action is Action.CONSUME and ">" in destination:
            return Explanation(Verdict.FILTER, ("some of it",))
        if action is Action.PUBLISH and "senders" in identity.groups:
            return Explanation(Verdict.ALLOW, ("rule 1", "rule 2"))
        return Explanation(Verdict.DENY)


class Nobody:
    """Refuses to delete, and gives no reasons."""

    def __repr__(self) -> str:
        return "nobody"

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        return Verdict.DENY if action is Action.DELETE else Verdict.ALLOW


async def ask(broker: Broker, request: Any, around: Around | None = None) -> Any:
    return await perform(Operations(broker.core, *([around] if around else [])), ME, request)


def verdicts(found: AccessDetails) -> dict[Action, Verdict]:
    return {one.action: one.verdict for one in found.decided}


async def test_what_somebody_may_do_is_explained_in_the_words_of_each_authorizer() -> None:
    authorizer = Groups()
    async with Broker(extensions=[People(ada="senders"), authorizer, Nobody()]) as broker:
        found = await ask(broker, ExplainAccess("ada", A, client_id="c", address="10.0.0.1"))
        assert found.groups == ("senders",)
        assert authorizer.asked[-1] == Identity("ada", frozenset({"senders"}), "c", "10.0.0.1", "")
        assert verdicts(found) == {
            Action.CONSUME: Verdict.DENY,
            Action.BROWSE: Verdict.DENY,
            Action.PUBLISH: Verdict.ALLOW,
            Action.CREATE: Verdict.DENY,
            Action.DELETE: Verdict.DENY,
        }
        publish = next(one for one in found.decided if one.action is Action.PUBLISH)
        assert [(r.authorizer, r.verdict, r.why) for r in publish.reasons] == [
            ("groups", Verdict.ALLOW, ("rule 1", "rule 2")),
            ("nobody", Verdict.ALLOW, ()),
        ]
        other = await ask(broker, ExplainAccess("ada", A, groups=("none",)))
        assert (other.groups, verdicts(other)[Action.PUBLISH]) == (("none",), Verdict.DENY)
        some = await ask(broker, ExplainAccess("bob", "queue://a.>"))
        assert verdicts(some) == {Action.CONSUME: Verdict.FILTER, Action.BROWSE: Verdict.DENY}
        nowhere = await ask(broker, ExplainAccess("bob"))
        assert verdicts(nowhere) == {Action.CONNECT: Verdict.ALLOW, Action.ADMIN: Verdict.ALLOW}
        topic = await ask(broker, ExplainAccess("bob", "topic://t"))
        assert set(verdicts(topic)) == {Action.SUBSCRIBE, Action.PUBLISH, Action.RETAIN}
        for wrong in ("a", "queue://", "queue://>.a"):
            with pytest.raises(RequestError):
                await ask(broker, ExplainAccess("bob", wrong))


async def test_without_an_authorizer_all_is_allowed_and_nobody_gives_a_reason() -> None:
    async with Broker() as broker:
        found = await ask(broker, ExplainAccess("ada", A))
        assert {one.verdict for one in found.decided} == {Verdict.ALLOW}
        assert {one.reasons for one in found.decided} == {()}


async def test_everybody_who_is_known_is_listed_with_what_it_may_do() -> None:
    async with Broker(extensions=[People(ada="senders", cy=""), Groups()]) as broker:
        client = await broker.client(username="eve", password=b"x")
        rows: list[AccessRow] = []
        after = ""
        while True:
            page = await ask(broker, ListAccess(A, after=after, limit=2))
            rows += page.rows
            after = page.next
            if not after:
                break
        assert [(row.user, row.connections) for row in rows] == [
            ("ada", 0),
            ("anonymous", 0),
            ("cy", 0),
            ("eve", 1),
        ]
        assert {row.user: row.verdicts["publish"] for row in rows} == {
            "ada": Verdict.ALLOW,
            "anonymous": Verdict.DENY,
            "cy": Verdict.DENY,
            "eve": Verdict.DENY,
        }
        (row,) = (await ask(broker, ListAccess(A, "AD"))).rows
        assert (row.user, row.groups) == ("ada", ("senders",))
        for wrong in ("queue://a.>", ""):
            with pytest.raises(RequestError, match="one queue or topic"):
                await ask(broker, ListAccess(wrong))
        client.connection.disconnect(graceful=True)


async def test_users_are_listed_without_those_that_are_gone_meanwhile() -> None:
    async with Broker(extensions=[Silent(), People(ada="senders readers", cy="")]) as broker:
        client = await broker.client(username="ada", password=b"x")
        page = await ask(broker, ListUsers())
        assert page.unlisted == ("silent",)
        assert [(row.user, row.groups, row.connections) for row in page.rows] == [
            ("ada", ("readers", "senders"), 1),
            ("cy", (), 0),
        ]
        assert {(row.authenticator, row.checks) for row in page.rows} == {("people", ("argon2id",))}
        assert [row.user for row in (await ask(broker, ListUsers("C"))).rows] == ["cy"]
        client.connection.disconnect(graceful=True)


class Ruled(Groups):
    """Has rules, and says which."""

    def __init__(self, *rules: AccessRule) -> None:
        super().__init__()
        self.rules = rules

    def __repr__(self) -> str:
        return "ruled"

    def rules_source(self) -> str:
        return "/etc/rules"

    def access_rules(self) -> Iterator[AccessRule]:
        yield from self.rules


async def test_rules_are_listed_in_their_order_page_by_page() -> None:
    some = [
        AccessRule(1, 3, False, (Action.DELETE,), ("queue://a.>",), {"groups": ("senders",)}),
        AccessRule(2, 0, True, (Action.ADMIN, Action.CONNECT)),
        *[AccessRule(number, 0, True, (Action.PUBLISH,), ("b",)) for number in range(3, 13)],
    ]
    others = AccessRule(1, 1, True, (Action.DELETE,), None, {"principals": ("Ada", "bob")})
    async with Broker(extensions=[Ruled(*some), Nobody(), Ruled(others)]) as broker:
        rows: list[RuleRow] = []
        after = ""
        while True:
            page = await ask(broker, ListRules(after=after, limit=5))
            rows += page.rows
            after = page.next
            if not after:
                break
        assert [row.number for row in rows] == [*range(1, 13), 1]
        assert rows[0] == RuleRow(
            "ruled",
            "/etc/rules",
            1,
            3,
            False,
            (Action.DELETE,),
            ("queue://a.>",),
            {"groups": ("senders",)},
        )
        assert (page.authorizers, page.unlisted) == (("ruled", "nobody", "ruled"), ("nobody",))
        for request, expected in (
            (ListRules("SEND"), [rows[0]]),
            (ListRules("ada"), [rows[12]]),
            (ListRules("queue://a"), [rows[0]]),
            (ListRules(action=Action.DELETE), [rows[0], rows[12]]),
            (ListRules("b", Action.DELETE), [rows[12]]),
            (ListRules("none"), []),
        ):
            assert list((await ask(broker, request)).rows) == expected
        with pytest.raises(RequestError, match="after"):
            await ask(broker, ListRules(after="x"))


async def test_where_nobody_is_asked_there_are_no_rules() -> None:
    async with Broker() as broker:
        assert await ask(broker, ListRules()) == RulePage((), (), ())


async def test_plugins_are_listed_as_the_gateway_around_knows_them() -> None:
    rows = [
        PluginRow("store", "b", "pack", "1", True, "A store.", ()),
        PluginRow("cursor", "a", "other", "2", False, "", ()),
    ]
    async with Broker() as broker:
        around = Around(plugins=lambda: rows)
        assert (await ask(broker, ListPlugins(), around)).rows == (rows[1], rows[0])
        assert (await ask(broker, ListPlugins(active=True), around)).rows == (rows[0],)
        assert (await ask(broker, ListPlugins("STORE-B"), around)).rows == (rows[0],)
        first = await ask(broker, ListPlugins(limit=1), around)
        assert (await ask(broker, ListPlugins(after=first.next), around)).rows == (rows[0],)


async def test_bridges_are_listed_as_the_gateway_around_knows_them() -> None:
    facts = (0, 0, 0, 0, 0, 0, "", "")
    rows = [
        BridgeRow("old", "b", "in", "stomp://x", "/queue/b", "queue://b", "", *facts),
        BridgeRow("old", "a", "out", "stomp://x", "queue://a", "/queue/a", "ActiveMQ/6", *facts),
    ]
    async with Broker() as broker:
        around = Around(bridges=lambda: rows)
        assert (await ask(broker, ListBridges(), around)).rows == (rows[1], rows[0])
        assert (await ask(broker, ListBridges("QUEUE/B"), around)).rows == (rows[0],)
        first = await ask(broker, ListBridges(limit=1), around)
        assert (await ask(broker, ListBridges(after=first.next), around)).rows == (rows[0],)
        assert [row.is_connected for row in rows] == [False, True]


@pytest.mark.parametrize(
    "request_",
    [
        ExplainAccess("ada", A),
        ListAccess(A),
        ListRules(),
        ListUsers(),
        ListPlugins(),
        ListBridges(),
    ],
)
async def test_nobody_without_the_right_sees_any(request_: Any) -> None:
    guard = Guard()
    async with Broker(extensions=[guard]) as broker:
        with pytest.raises(AccessError):
            await ask(broker, request_)
        assert [(e.kind, e.action) for e in guard.events] == [(AuditKind.REFUSED, Action.ADMIN)]
