"""Whatever the rules are, and become: nobody gets what they may not, and everybody what they may.

Random rules, clients of both kinds, filters, publishes, kills and changes of the rules run on a
broker with the rules of ``tidegate-acl``, beside a model that asks the rules about each message and each
name by itself: no inclusion, no cache, no subscription that was decided before.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from broker_harness import Broker, Client
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_loop import run

from tidegate.broker.connection import deciding
from tidegate.broker.turn import walks
from tidegate.spi import (
    AccessError,
    Action,
    Credentials,
    Identity,
    Principal,
    RetainHandling,
    Verdict,
    names,
)
from tidegate_acl._reading import parse_rules
from tidegate_acl._rules import Rules

CLIENT_IDS: Final = ("a", "b", "c")
PRINCIPALS: Final = {"a": "p", "b": "p", "c": "q"}
PROTOCOLS: Final = {"a": "stomp", "b": "mqtt", "c": "mqtt"}
KEPT: Final = "c"  # whose session is stored

#: Of patterns with two levels at most; "other" and "$other" stand for any other level.
NAMES: Final = [
    ".".join([first, *rest])
    for length in (0, 1, 2)
    for first in ("a", "b", "c", "$x", "other", "$other")
    for rest in itertools.product(("a", "b", "c", "$x", "other"), repeat=length)
]


@dataclass(frozen=True)
class RuleModel:
    """A rule as the test sees it."""

    allows: bool
    actions: tuple[str, ...]
    patterns: tuple[str, ...]
    principal: str

    def text(self) -> str:
        lines = ["[[rules]]", f"{'allow' if self.allows else 'deny'} = {list(self.actions)}"]
        if self.principal:
            lines.append(f"principals = '{self.principal}'")
        if self.patterns:
            lines.append(f"destinations = {list(self.patterns)}")
        return "\n".join(lines)

    def fits(self, client_id: str, action: Action, destination: str) -> bool:
        return (
            action.value in self.actions
            and self.principal in ("", PRINCIPALS[client_id])
            and (
                not self.patterns
                or any(
                    names.matches(text.replace("{client_id}", client_id), destination[8:])
                    for text in self.patterns
                )
            )
        )


@dataclass
class Subscribed:
    """A subscription, and what came for it while its client was away."""

    filter: str
    waiting: list[tuple[str, bytes]] = field(default_factory=list)


class Door:
    """Authenticates by name and authorizes by the rules of the moment."""

    rules: Rules

    async def authenticate(self, credentials: Credentials) -> Principal | None:
        return Principal(credentials.username)

    def authorize(self, identity: Identity, action: Action, destination: str) -> Verdict:
        return self.rules.decide(identity, action, destination).verdict


class World:
    """The broker and the model."""

    def __init__(self, rules: list[RuleModel]) -> None:
        self.door = Door()
        self.set_rules(rules)
        self.broker = Broker(extensions=[self.door])
        self.clients: dict[str, Client] = {}
        self.subscribed: dict[str, Subscribed] = {}
        self.queues: dict[str, list[bytes]] = {}
        self.retained: dict[str, bytes] = {}
        self.expected: dict[str, Counter[bytes]] = {key: Counter() for key in CLIENT_IDS}
        self.got: dict[str, Counter[bytes]] = {key: Counter() for key in CLIENT_IDS}
        self.count = 0

    def set_rules(self, rules: list[RuleModel]) -> None:
        self.model = rules
        self.door.rules = parse_rules("\n".join(rule.text() for rule in rules))

    # --- the model -----------------------------------------------------------------------------

    def may(self, client_id: str, action: Action, destination: str) -> bool:
        fitting = (rule for rule in self.model if rule.fits(client_id, action, destination))
        return next((rule.allows for rule in fitting), False)

    def may_some(self, client_id: str, wanted: str) -> bool:
        action = Action.CONSUME if names.is_queue(wanted) else Action.SUBSCRIBE
        return any(
            self.may(client_id, action, wanted[:8] + name)
            for name in {*NAMES, wanted[8:]}
            if not names.is_filter(name) and names.matches(wanted[8:], name)
        )

    def hand_out(self) -> None:
        """What clients that are there should have by now."""
        for client_id in self.clients:
            found = self.subscribed.get(client_id)
            if found is None:
                continue
            for destination, body in found.waiting:
                if self.may(client_id, Action.SUBSCRIBE, destination):
                    self.expected[client_id][body] += 1
            found.waiting.clear()

    def hand_out_queues(self) -> None:
        """Of queues each has one consumer at most."""
        for client_id in self.clients:
            found = self.subscribed.get(client_id)
            if found is None or not names.is_queue(found.filter):
                continue
            for destination, bodies in self.queues.items():
                if names.matches(found.filter[8:], destination[8:]) and self.may(
                    client_id, Action.CONSUME, destination
                ):
                    self.expected[client_id].update(bodies)
                    bodies.clear()

    # --- what happens --------------------------------------------------------------------------

    async def settle(self) -> None:
        await self.broker.settle()
        for client_id, client in list(self.clients.items()):
            if client.ended is not None:
                self.drop(client_id)
        self.hand_out()
        self.hand_out_queues()
        assert self.got == self.expected

    def drop(self, client_id: str) -> None:
        del self.clients[client_id]
        if client_id != KEPT:
            self.subscribed.pop(client_id, None)

    async def connect(self, client_id: str) -> None:
        if client_id in self.clients:
            return
        more: dict[str, Any] = {"username": PRINCIPALS[client_id]}
        if client_id == KEPT:
            more |= {"clean_start": False, "session_expiry": 1000}
        if not self.may(client_id, Action.CONNECT, ""):
            with pytest.raises(AccessError):
                await self.broker.client(PROTOCOLS[client_id], client_id, **more)
            return
        client = await self.broker.client(PROTOCOLS[client_id], client_id, resume=False, **more)
        got = self.got[client_id]

        def deliver(key: str, messages: Any) -> None:
            got.update(item.message.body for item in messages)
            if client.connection.consumers[key].acknowledge:
                client.connection.acknowledge(key, [item.sequence for item in messages])

        client.on_deliver = deliver
        self.clients[client_id] = client
        kept = self.subscribed.get(client_id)
        if kept is not None:
            resumed = bool(client.result.subscriptions)
            assert resumed is self.may_some(client_id, kept.filter)
            if not resumed:  # given up, or nothing could be told from a subscription that is there
                assert client.connection.unsubscribe("s", forget=True)
                del self.subscribed[client_id]
        client.connection.resume()

    async def subscribe(self, client_id: str, wanted: str) -> None:
        client = self.clients.get(client_id)
        if client is None:
            return
        others = [item.filter for key, item in self.subscribed.items() if key != client_id]
        if names.is_queue(wanted) and any(names.is_queue(item) for item in others):
            return
        if client_id in self.subscribed:
            client.connection.unsubscribe("s", forget=True)
            del self.subscribed[client_id]
            await self.settle()
        is_kept = client_id == KEPT
        more: dict[str, Any] = {"qos": 1 if is_kept else 0, "acknowledge": is_kept}
        if names.is_queue(wanted):
            more = {"acknowledge": True, "qos": 1}
        if is_kept:
            more["durable_name"] = "s"
        may = self.may_some(client_id, wanted)
        is_new = (
            names.is_queue(wanted) and not names.is_filter(wanted) and wanted not in self.queues
        )
        if is_new and not self.may(client_id, Action.CREATE, wanted):
            may = False
        if not may:
            with pytest.raises(AccessError):
                client.subscribe(wanted, "s", **more)
            return
        client.subscribe(wanted, "s", retain_handling=RetainHandling.SEND, **more)
        if is_new:
            self.queues[wanted] = []
        self.subscribed[client_id] = Subscribed(wanted)
        for destination, body in self.retained.items():
            if wanted[:8] == destination[:8] and names.matches(wanted[8:], destination[8:]):
                self.subscribed[client_id].waiting.append((destination, body))

    async def publish(self, client_id: str, destination: str, retain: bool) -> None:
        client = self.clients.get(client_id)
        if client is None:
            return
        self.count += 1
        body = b"%d" % self.count
        is_queue = names.is_queue(destination)
        may = self.may(client_id, Action.PUBLISH, destination)
        if is_queue and destination not in self.queues:
            may = may and self.may(client_id, Action.CREATE, destination)
        if retain and not is_queue:
            may = may and self.may(client_id, Action.RETAIN, destination)
        if not may:
            with pytest.raises(AccessError):
                client.send(destination, body, retain=retain)
            return
        client.send(destination, body, retain=retain)
        if is_queue:
            self.queues.setdefault(destination, []).append(body)
            return
        if retain:
            self.retained[destination] = body
        for found in self.subscribed.values():
            if names.is_topic(found.filter) and names.matches(found.filter[8:], destination[8:]):
                found.waiting.append((destination, body))

    async def change_and_publish(
        self, rules: list[RuleModel], client_id: str, destination: str, retain: bool
    ) -> None:
        """Before anything was decided about anybody; then one answer is asked for in each turn."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walks, "SLICE_S", 0)
            patch.setattr(deciding, "DECIDED_AT_ONCE", 1)
            self.set_rules(rules)
            self.broker.core.rights_changed()
            client = self.clients.get(client_id)
            if client is not None and client.ended is None:
                if self.may(client_id, Action.CONNECT, ""):
                    await self.publish(client_id, destination, retain)
                else:
                    with pytest.raises(AccessError):
                        client.send(destination, "m")
            while any(item.is_undecided for item in self.broker.core.connections):
                await asyncio.sleep(0)
        self.check_who_is_there()

    async def change(self, rules: list[RuleModel]) -> None:
        self.set_rules(rules)
        self.broker.core.rights_changed()
        self.check_who_is_there()

    def check_who_is_there(self) -> None:
        for client_id, client in self.clients.items():
            found = self.subscribed.get(client_id)
            stays = self.may(client_id, Action.CONNECT, "") and (
                found is None or self.may_some(client_id, found.filter)
            )
            assert (client.ended is None) is stays

    async def leave(self, client_id: str) -> None:
        client = self.clients.get(client_id)
        if client is not None:
            client.connection.disconnect(graceful=True)
            self.drop(client_id)

    async def kill(self) -> None:
        await self.broker.kill()
        for client_id in list(self.clients):
            self.drop(client_id)


async def play(
    rules: list[RuleModel], wanted: list[str], sent: list[str], steps: list[tuple[Any, ...]]
) -> None:
    world = World(rules)
    async with world.broker:
        for client_id, text in zip(CLIENT_IDS, wanted, strict=True):
            await world.connect(client_id)
            await world.subscribe(client_id, text)
            await world.settle()
        for number, destination in enumerate(sent):
            await world.publish(CLIENT_IDS[number % 3], destination, retain=number % 4 == 0)
        await world.settle()
        for name, *arguments in steps:
            await getattr(world, name)(*arguments)
            await world.settle()
        for client_id in list(world.clients):
            await world.leave(client_id)


levels = st.sampled_from(["a", "b", "$x", "other"])
patterns = st.builds(
    ".".join,
    st.one_of(
        st.lists(st.sampled_from(["a", "b", "$x", "*", "{client_id}"]), min_size=1, max_size=2),
        st.sampled_from([[">"], ["a", ">"], ["*", ">"], ["$x", ">"], ["{client_id}", ">"]]),
    ),
)
kinds = st.sampled_from(["topic://", "queue://"])
destinations = st.builds(
    lambda kind, found: kind + ".".join(found), kinds, st.lists(levels, min_size=1, max_size=2)
)
filters = st.builds(lambda kind, text: kind + text.replace("{client_id}", "*"), kinds, patterns)
actions = st.one_of(
    st.just(("publish", "retain", "subscribe", "consume", "create")),
    st.lists(
        st.sampled_from(["publish", "retain", "subscribe", "consume", "create"]),
        min_size=1,
        unique=True,
    ).map(tuple),
)
whose = st.sampled_from(["", "", "p", "q"])
with_names = st.builds(
    RuleModel, st.booleans(), actions, st.lists(patterns, min_size=1, max_size=2).map(tuple), whose
)
without = st.builds(RuleModel, st.booleans(), actions, st.just(()), whose)
doors = st.sampled_from(
    [
        [RuleModel(True, ("connect",), (), "")],
        [RuleModel(True, ("connect",), (), "")],
        [RuleModel(False, ("connect",), (), "q"), RuleModel(True, ("connect",), (), "")],
    ]
)
EVERYTHING: Final = RuleModel(True, ("publish", "retain", "subscribe", "consume", "create"), (), "")
rule_lists = st.builds(
    lambda door, found, last: [*door, *found, *last],
    doors,
    st.lists(with_names, max_size=4),
    st.one_of(
        st.just([]), st.just([EVERYTHING]), st.just([EVERYTHING]), st.lists(without, max_size=1)
    ),
)
who = st.sampled_from(CLIENT_IDS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), who, destinations, st.booleans()),
        st.tuples(st.just("publish"), who, destinations, st.booleans()),
        st.tuples(st.just("subscribe"), who, filters),
        st.tuples(st.just("subscribe"), who, filters),
        st.tuples(st.just("connect"), who),
        st.tuples(st.just("leave"), who),
        st.tuples(st.just("change"), rule_lists),
        st.tuples(st.just("change_and_publish"), rule_lists, who, destinations, st.booleans()),
        st.tuples(st.just("kill")),
    ),
    max_size=15,
)


@given(
    rule_lists,
    st.lists(filters, min_size=3, max_size=3),
    st.lists(destinations, min_size=8, max_size=8),
    steps,
)
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_nobody_gets_what_they_may_not_and_everybody_what_they_may(
    rules: list[RuleModel], wanted: list[str], sent: list[str], steps: list[tuple[Any, ...]]
) -> None:
    run(play(rules, wanted, sent, steps))
