"""Every way to a message asks the same authorizers, and the rights of now decide."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from broker_harness import Broker, message
from walls import SECRET, STORED, Wall, stored

from tidegate.broker.publish.access import OwnWrite, check_own
from tidegate.config import DestinationPolicy
from tidegate.spi import (
    AccessError,
    Action,
    BranchId,
    Held,
    Identity,
    Message,
    RequestError,
    RetainHandling,
    Verdict,
    names,
)


async def test_a_filter_does_not_deliver_what_is_refused_under_its_own_name() -> None:
    async with Broker(extensions=[Wall(SECRET)]) as broker:
        plain, kept = await broker.client("mqtt", "p"), await stored(broker)
        direct = await stored(broker, "d")
        plain.subscribe("topic://*.plan", "p")
        kept.subscribe("topic://*.plan", "k", durable_name="k", qos=1)
        direct.subscribe("topic://*.plan", "d", durable_name="d", qos=0, acknowledge=False)
        sender = await broker.client()
        for qos in (0, 1):
            sender.send("topic://secret.plan", "no", qos=qos)
            sender.send("topic://open.plan", f"yes {qos}", qos=qos)
        await broker.settle()
        for client in (plain, kept, direct):
            assert sorted(client.bodies()) == [b"yes 0", b"yes 1"]
        kept.ack_all("k")
        await broker.settle()
        assert broker.store.pending("topic://*.plan") == []  # what is refused was not kept


async def publish_both(broker: Broker, **more: Any) -> None:
    """A plan that is secret and one that is open."""
    sender = await broker.client()
    for name in ("secret", "open"):
        sender.send(f"topic://{name}.plan", name, **more)
    await broker.settle()


async def test_retained_messages_are_asked_about_one_by_one() -> None:
    async with Broker(extensions=[Wall(SECRET)]) as broker:
        await publish_both(broker, retain=True)
        for protocol, more in (("stomp", {}), ("mqtt", STORED)):
            client = await broker.client(protocol, protocol, **more)
            durable: dict[str, Any] = {"durable_name": "s", "qos": 1} if more else {}
            client.subscribe("topic://>", retain_handling=RetainHandling.SEND, **durable)
            await broker.settle()
            assert client.bodies() == [b"open"]


async def test_what_waited_while_the_client_was_away_is_judged_by_the_rights_of_now() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await stored(broker)
        client.subscribe("topic://*.plan", "s", durable_name="s", qos=1)
        await broker.settle()
        client.connection.disconnect(graceful=True)
        await publish_both(broker)
        wall.refused.add(SECRET)
        await broker.kill()
        client = await stored(broker)
        await broker.settle()
        assert client.bodies() == [b"open"]


async def test_a_subscription_that_is_refused_now_is_not_resumed_and_stays_until_then() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await stored(broker)
        client.subscribe("topic://secret.plan", "s", durable_name="s", qos=1)
        client.subscribe("queue://q", "q", durable_name="q", qos=1)
        client.subscribe("topic://other", "o", durable_name="o", qos=1)
        await broker.settle()
        client.connection.disconnect(graceful=True)
        sender = await broker.client()
        for destination in ("topic://secret.plan", "queue://q", "topic://other"):
            sender.send(destination, "m")
        await broker.settle()
        wall.refused |= {SECRET, (Action.CONSUME, "queue://q")}
        await broker.kill()
        client = await stored(broker)
        await broker.settle()
        assert sorted(item.name for item in client.result.refused) == ["q", "s"]
        assert [item.name for item in client.result.subscriptions] == ["o"]
        assert client.bodies() == client.bodies("o") == [b"m"]
        client.connection.disconnect(graceful=True)
        wall.refused.clear()
        client = await stored(broker)
        await broker.settle()
        assert client.bodies("s") == client.bodies("q") == [b"m"]
        client.connection.disconnect(graceful=True)
        wall.refused |= {SECRET, (Action.CONSUME, "queue://q")}
        client = await stored(broker)
        assert client.connection.unsubscribe("s", forget=True)  # it can be given up
        assert client.connection.unsubscribe("q", forget=True)
        assert not client.connection.unsubscribe("never", forget=True)
        client.connection.disconnect(graceful=True)
        client = await stored(broker)
        assert client.result.refused == []


async def test_rights_that_change_count_at_once() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        exact, wide = await broker.client("mqtt", "e"), await broker.client("mqtt", "w")
        exact.subscribe("topic://secret.plan", qos=0, acknowledge=False)
        wide.subscribe("topic://*.plan", qos=0, acknowledge=False)
        sender = await broker.client()
        sender.send("topic://secret.plan", "before")
        await broker.settle()
        sender.send("topic://secret.plan", "in between")  # accepted, and not delivered yet
        wall.refused |= {SECRET, (Action.PUBLISH, "topic://open.plan")}
        broker.core.rights_changed()
        assert isinstance(exact.ended, AccessError)
        await broker.settle()
        assert exact.bodies() == wide.bodies() == [b"before"]
        with pytest.raises(AccessError):
            sender.send("topic://open.plan", "m")
        wall.refused.clear()
        broker.core.rights_changed()
        sender.send("topic://open.plan", "again")
        sender.send("topic://secret.plan", "again")
        await broker.settle()
        assert wide.bodies() == [b"before", b"again", b"again"]
        assert wide.ended is None


async def test_a_client_that_holds_what_it_may_not_have_any_more_is_disconnected() -> None:
    """Its front-end may not have sent it yet."""
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await stored(broker)
        client.subscribe("topic://*.plan", "s", durable_name="s", qos=1)
        client.send("topic://secret.plan", "m")
        await broker.settle()
        assert client.bodies() == [b"m"]
        wall.refused.add(SECRET)
        broker.core.rights_changed()
        assert isinstance(client.ended, AccessError)
        client = await stored(broker)
        await broker.settle()
        assert client.bodies() == []


async def test_a_client_that_may_not_connect_any_more_is_disconnected() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        wall.refused.add((Action.CONNECT, ""))
        broker.core.rights_changed()
        assert isinstance(client.ended, AccessError)
        with pytest.raises(AccessError, match="connect"):
            await broker.client()


async def test_of_queues_a_filter_serves_those_that_may_be_consumed() -> None:
    secret = (Action.CONSUME, "queue://q.secret")
    wall = Wall(secret)
    async with Broker(extensions=[wall]) as broker:
        sender, client = await broker.client(), await broker.client()
        sender.send("queue://q.secret", "no")
        sender.send("queue://q.open", "1")
        client.subscribe("queue://q.>")
        wall.refused.add((Action.CONSUME, "queue://q.late"))
        sender.send("queue://q.late", "no")
        sender.send("queue://q.new", "2")
        await broker.settle()
        assert client.bodies() == [b"1", b"2"]
        assert broker.store.pending("queue://q.secret") == [b"no"]
        client.ack_all()
        wall.refused -= {secret}
        wall.refused.add((Action.CONSUME, "queue://q.open"))
        broker.core.rights_changed()
        sender.send("queue://q.open", "refused now")
        await broker.settle()
        assert client.bodies() == [b"1", b"2", b"no"]
        other = await broker.client()
        wall.refused.clear()
        other.subscribe("queue://q.open")
        await broker.settle()
        assert other.bodies() == [b"refused now"]


async def test_of_a_share_group_a_member_gets_what_it_may_and_others_the_rest() -> None:
    class ByClient:
        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            if action is not Action.SUBSCRIBE or identity.client_id == "all":
                return Verdict.ALLOW
            if names.is_filter(destination):
                return Verdict.FILTER
            return Verdict.DENY if "secret" in destination else Verdict.ALLOW

    async with Broker(extensions=[ByClient()]) as broker:
        less = await broker.client("mqtt", "less")
        less.subscribe("topic://*.plan", "s", share_group="g", qos=1)
        sender = await broker.client()
        sender.send("topic://secret.plan", "nobody is there who may")
        await broker.settle()
        full = await broker.client("mqtt", "all")
        full.subscribe("topic://*.plan", "s", share_group="g", qos=1, prefetch_count=2)
        for number in range(6):
            sender.send("topic://secret.plan", f"{number}")
            sender.send("topic://open.plan", f"o{number}")
        for _ in range(10):
            await broker.settle()
            for client in (less, full):
                client.ack_all()
        assert not [body for body in less.bodies() if not body.startswith(b"o")]
        got = sorted([*less.bodies(), *full.bodies()])
        assert got == sorted([b"%d" % n for n in range(6)] + [b"o%d" % n for n in range(6)])


async def test_a_queue_is_made_by_who_may_create_it() -> None:
    new = "queue://new"
    wall = Wall((Action.CREATE, new))
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        with pytest.raises(AccessError, match="create"):
            client.send(new, "m")
        with pytest.raises(AccessError, match="create"):
            client.subscribe(new)
        with pytest.raises(AccessError, match="create"):
            await broker.client("mqtt", "w", will=message(new, "w"))
        assert new not in broker.core.destinations.queues
        wall.refused.clear()
        broker.core.rights_changed()
        client.send(new, "m")
        await broker.settle()
        wall.refused.add((Action.CREATE, new))
        broker.core.rights_changed()
        client.send(new, "it is there now")
        client.subscribe(new)
        await broker.settle()
        assert len(client.bodies()) == 2


async def test_browsing_and_retaining_are_rights_of_their_own() -> None:
    wall = Wall((Action.BROWSE, "queue://q"), (Action.RETAIN, "topic://t"))
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        client.send("queue://q", "m")
        with pytest.raises(AccessError, match="browse"):
            client.begin_browsing("queue://q")
        client.send("topic://t", "m")
        for body in ("m", ""):  # clearing is retaining nothing
            with pytest.raises(AccessError, match="retain"):
                client.send("topic://t", body, retain=True)
        with pytest.raises(AccessError, match="retain"):
            await broker.client("mqtt", "w", will=message("topic://t", "w", retain=True))
        client.send("queue://q", "a queue keeps it anyway", retain=True)
        client.subscribe("queue://q")
        await broker.settle()
        assert len(client.bodies()) == 2


class Redirect:
    """Sends what is for ``topic://a`` to ``topic://b``, and retains it on demand."""

    def intercept(self, message: Message, principal: str) -> Message:
        if message.destination != "topic://a":
            return message
        return msgspec.structs.replace(
            message, destination="topic://b", retain=message.body == b"retain"
        )


async def test_what_an_interceptor_makes_of_a_publish_is_asked_about_too() -> None:
    wall = Wall((Action.RETAIN, "topic://b"))
    async with Broker(extensions=[wall, Redirect()]) as broker:
        client = await broker.client()
        client.subscribe("topic://b")
        client.send("topic://a", "m")
        with pytest.raises(AccessError, match="retain"):
            client.send("topic://a", "retain")
        wall.refused.add((Action.PUBLISH, "topic://b"))
        broker.core.rights_changed()
        with pytest.raises(AccessError, match="publish"):
            client.send("topic://a", "m")
        await broker.settle()
        assert client.bodies() == [b"m"]


async def test_a_transaction_that_is_committed_after_the_right_is_gone_is_refused() -> None:
    wall = Wall()
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        client.connection.begin("t")
        client.send("topic://t", "m", transaction="t")
        wall.refused.add((Action.PUBLISH, "topic://t"))
        broker.core.rights_changed()
        with pytest.raises(AccessError):
            client.connection.commit("t")
        client.connection.abort("t")


@pytest.mark.parametrize("wanted", ["topic://secret.*", "topic://*.plan", "topic://>"])
async def test_a_client_that_has_not_taken_what_it_may_not_have_any_more_ends(wanted: str) -> None:
    wall = Wall((Action.SUBSCRIBE, "topic://other.plan"))
    async with Broker(extensions=[wall]) as broker:
        slow, quick = await broker.client(), await broker.client()
        for client in (slow, quick):
            client.subscribe(wanted, qos=0, acknowledge=False)
        quick.send("topic://secret.plan", "m")
        await broker.settle()
        slow.has_unsent = True
        broker.core.rights_changed()  # it may still have all that it was given
        assert slow.ended is None
        wall.refused.add(SECRET)
        broker.core.rights_changed()
        assert isinstance(slow.ended, AccessError)
        assert quick.ended is None


async def test_what_was_given_to_a_slow_client_is_not_known_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidegate.broker.publish.access.AUTHORIZATIONS_MAX", 3)
    wall = Wall((Action.SUBSCRIBE, "topic://other.plan"))
    async with Broker(extensions=[wall]) as broker:
        slow, sender = await broker.client(), await broker.client()
        slow.subscribe("topic://>", qos=0, acknowledge=False)
        for number in range(9):
            sender.send(f"topic://{number}", "m")
        await broker.settle()
        broker.core.rights_changed()
        assert slow.ended is None
        for number in range(9):
            sender.send(f"topic://{number}", "m")
        await broker.settle()
        slow.has_unsent = True
        wall.refused.add((Action.SUBSCRIBE, "topic://0"))
        broker.core.rights_changed()
        assert isinstance(slow.ended, AccessError)


@pytest.mark.parametrize("action", [Action.PUBLISH, Action.RETAIN])
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_branch_is_asked_about_again_when_it_commits(
    action: Action, is_killed: bool
) -> None:
    wall, branch_id = Wall(), BranchId(1, b"b")
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        client.connection.begin("t")
        client.send("topic://open", "m", transaction="t")
        client.send("topic://t", "m", transaction="t", retain=True)
        client.connection.prepare("t", branch_id, "prepared")
        await broker.settle()
        wall.refused.add((action, "topic://t"))
        if is_killed:
            await broker.kill()
            client = await broker.client()
        else:
            broker.core.rights_changed()
        reader = await broker.client()
        reader.subscribe("topic://>")
        client.connection.commit_branch(branch_id, "refused")
        await broker.settle()
        assert "refused" not in client.confirmations
        ((token, error),) = client.failures
        assert token == "refused"
        assert isinstance(error, AccessError)
        assert reader.bodies() == []
        # It is as it was: there when the right is back.
        assert len(client.connection.branches()) == 1
        wall.refused.clear()
        broker.core.rights_changed()
        client.connection.commit_branch(branch_id, "committed")
        await broker.settle()
        assert client.confirmations[-1] == "committed"
        assert reader.bodies() == [b"m", b"m"]


async def test_temporary_destinations_need_no_rule_and_are_their_owner_s() -> None:
    class Nothing:
        def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
            return Verdict.ALLOW if action is Action.CONNECT else Verdict.DENY

    async with Broker(extensions=[Nothing()]) as broker:
        asker, answerer = await broker.client(), await broker.client()
        for kind in ("queue", "topic"):
            reply_to = asker.connection.make_temporary(f"{kind}://answers")
            asker.subscribe(reply_to, kind)
            answerer.send(reply_to, kind)
            with pytest.raises(AccessError):
                answerer.subscribe(reply_to)
        with pytest.raises(AccessError):  # a reply-to that is no temporary one is like any other
            answerer.send("queue://answers", "m")
        await broker.settle()
        assert asker.bodies() == [b"queue", b"topic"]


async def test_the_gateway_s_own_writes_are_those_that_are_listed() -> None:
    for write, destination in (
        (OwnWrite.DEAD_LETTER, "topic://t"),
        (OwnWrite.SYSTEM_TOPIC, "queue://q"),
        (OwnWrite.SYSTEM_TOPIC, "topic://t"),
        (OwnWrite.REPLAY, "topic://$SYS.broker.uptime"),
    ):
        with pytest.raises(AccessError):
            check_own(write, destination)
    dead = "queue://DLQ.q"
    wall = Wall((Action.PUBLISH, dead), (Action.CREATE, dead), (Action.CONSUME, dead))
    policy = DestinationPolicy(match=">", max_deliveries=1)
    async with Broker(policy, extensions=[wall], system_topics_interval=1) as broker:
        client = await broker.client()
        client.subscribe("queue://q")
        client.send("queue://q", "m")
        client.subscribe("topic://$SYS.>", "sys", qos=0, acknowledge=False)
        await broker.settle()
        client.connection.reject("s", client.sequences())
        await broker.settle()
        assert broker.store.pending(dead) == [b"m"]
        with pytest.raises(AccessError):
            client.subscribe(dead, "dead")


@pytest.mark.parametrize("answer", [True, None, Verdict.FILTER])
async def test_an_answer_that_is_none_is_a_refusal(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Yes:
        def authorize(self, identity: Identity, action: Action, destination: str) -> Any:
            return Verdict.ALLOW if action is Action.CONNECT else answer

    async with Broker(extensions=[Yes()]) as broker:
        client = await broker.client()
        with pytest.raises(AccessError):
            client.send("topic://t", "m")
        with pytest.raises(AccessError):
            client.subscribe("topic://t")
    assert "treated as a refusal" in caplog.text


async def test_what_is_remembered_of_rights_is_held_for_the_connection() -> None:
    async with Broker(extensions=[Wall(SECRET)]) as broker:
        client = await broker.client()
        account = client.connection.account
        client.subscribe("topic://t.*", qos=0, acknowledge=False)
        before = account.kinds[Held.RIGHTS]
        tracemalloc.start()
        begin = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            client.connection.parts.access.check_destination(
                client.connection, f"topic://t.{number:05}".ljust(256, "\U0001f600")
            )
        taken = tracemalloc.get_traced_memory()[0] - begin
        tracemalloc.stop()
        counted = account.kinds[Held.RIGHTS] - before
        assert counted > 300 * 1000
        assert taken <= 1.5 * counted, (taken, counted)
        broker.core.rights_changed()
        assert account.kinds[Held.RIGHTS] < before + 1000
        client.connection.disconnect(graceful=True)
        await broker.settle()
        assert broker.core.accounts.gateway.held == 0


async def test_without_room_rights_are_asked_for_each_time() -> None:
    rules = Wall(SECRET)
    async with Broker(extensions=[rules]) as broker:
        client = await broker.client()
        account = client.connection.account
        before = account.kinds[Held.RIGHTS]
        account.limit = account.held + 100
        client.send("topic://t", "m")
        asked = len(rules.asked)
        client.send("topic://t", "m")
        assert len(rules.asked) > asked
        assert account.kinds[Held.RIGHTS] == before
        assert broker.core.accounts.gateway.refused == 0
        account.limit = 0
        client.send("topic://t", "m")
        asked = len(rules.asked)
        client.send("topic://t", "m")
        assert len(rules.asked) == asked


async def test_what_a_reader_of_the_log_may_take_is_what_it_could_consume_or_browse() -> None:
    open_queue, half, shut = "queue://open", "queue://half", "queue://shut"
    wall = Wall(
        (Action.CONSUME, half),
        (Action.CONSUME, shut),
        (Action.BROWSE, shut),
        SECRET,
    )
    async with Broker(extensions=[wall]) as broker:
        client = await broker.client()
        take = client.connection.may_take
        assert [take(name) for name in (open_queue, half, shut)] == [True, True, False]
        assert [take(name) for name in ("topic://open.plan", SECRET[1])] == [True, False]
        assert not take("queue://$temporary.token.name"), "its owner had it"
        asked = len(wall.asked)
        assert take(half)
        assert len(wall.asked) == asked, "answers are remembered"
        wall.refused.add((Action.BROWSE, half))
        broker.core.rights_changed()
        assert not take(half)
        client.connection.disconnect(graceful=True)
        with pytest.raises(RequestError):
            take(open_queue)
