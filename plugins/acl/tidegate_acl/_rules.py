"""The rules of the file, and how they decide about a request."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from tidegate.spi import Action, Identity, Verdict, names
from tidegate_acl._patterns import Coverage, Pattern, decide, meet

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Actions without a destination.
NOWHERE: Final = frozenset({Action.CONNECT, Action.ADMIN})

VARIABLE: Final = re.compile(r"\{(\w*)\}")

#: Characters that could change the meaning of a pattern when they are in a client's name: level
#: separators and wildcards of either protocol.
_SPECIAL: Final = frozenset("./*+>#\0")

#: Identities whose rules are cached, and filters cached for each group with the same rules.
_READY_MAX: Final = 1000

#: Stands for anyone, in patterns that are the same for everybody.
_NOBODY: Final = Identity("", frozenset(), "", "", "")

#: Longer filters are not cached.
_REMEMBERED_CHARACTERS: Final = 256

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[rules]]`` table.

    Attributes:
        number: from 1; line: of its heading, 0 if unknown.
        destinations: (scheme or "" for both, levels); None: any, or none at all.
        principals, groups, client_ids, addresses: None: anyone.
    """

    number: int
    line: int
    allows: bool
    actions: frozenset[Action]
    destinations: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    principals: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    client_ids: frozenset[str] | None = None
    addresses: tuple[Network, ...] | None = None

    def is_for(self, identity: Identity) -> bool:
        """Whether all its conditions are met."""
        return (
            (self.principals is None or identity.principal in self.principals)
            and (self.groups is None or not self.groups.isdisjoint(identity.groups))
            and (self.client_ids is None or identity.client_id in self.client_ids)
            and (self.addresses is None or _is_in(identity.address, self.addresses))
        )

    def patterns(self, identity: Identity, scheme: str) -> list[Pattern]:
        """Its patterns for one kind of destination, filled in for this identity."""
        if self.destinations is None:  # any at all
            return [Pattern((">",), self.allows, covers_dollar=True)]
        return [
            Pattern(levels, self.allows)
            for kind, written in self.destinations
            if kind in ("", scheme)
            and (levels := _filled(written, identity, self.allows)) is not None
        ]

    @property
    def is_for_all(self) -> bool:
        """Whether it decides about its actions for everybody and every destination."""
        conditions = (self.principals, self.groups, self.client_ids, self.addresses)
        return self.destinations is None and all(item is None for item in conditions)

    @property
    def is_personal(self) -> bool:
        """Whether its patterns contain the client's own names."""
        return any("{" in level for _, levels in self.destinations or () for level in levels)

    @property
    def conditions(self) -> dict[str, tuple[str, ...]]:
        """The conditions on the client, by key of its table."""
        return {
            key: tuple(sorted(str(item) for item in found))
            for key, found in (
                ("principals", self.principals),
                ("groups", self.groups),
                ("client_ids", self.client_ids),
                ("addresses", self.addresses),
            )
            if found is not None
        }

    @property
    def written(self) -> tuple[str, ...] | None:
        """Its patterns as text."""
        if self.destinations is None:
            return None
        return tuple(f"{scheme}{'.'.join(levels)}" for scheme, levels in self.destinations)

    def text(self) -> str:
        """For people: ``rule 3 (line 17)``."""
        return f"rule {self.number}" + (f" (line {self.line})" if self.line else "")


@dataclass(frozen=True, slots=True)
class Decision:
    """Attributes: rules: those that decided, in order; None for the default."""

    verdict: Verdict
    rules: tuple[Rule | None, ...]


@dataclass(frozen=True, slots=True)
class _Ready:
    """Rules for one action and kind of destination, shared by all clients that they all fit.

    Attributes:
        patterns, rules: the patterns, and the rule of each.
        personal: patterns with the client's own names; common: the rest, without these.
        decided: decisions about filters, by name.
    """

    patterns: tuple[Pattern, ...]
    rules: tuple[Rule, ...]
    personal: tuple[Pattern, ...] = ()
    common: _Ready | None = None
    decided: dict[str, Decision] = field(default_factory=dict[str, Decision])


class Rules:
    """All rules, in order.

    Attributes: warnings: rules without effect, in words.
    """

    def __init__(self, rules: Sequence[Rule], warnings: Sequence[str] = ()) -> None:
        self.rules = tuple(rules)
        self.warnings = tuple(warnings)
        self._personal = {rule.number for rule in rules if rule.is_personal}
        self._same = {
            (rule.number, scheme): rule.patterns(_NOBODY, scheme)
            for rule in rules
            if not rule.is_personal
            for scheme in (names.QUEUE_PREFIX, names.TOPIC_PREFIX)
        }
        self._by_action: dict[Action, list[Rule]] = {}
        for rule in rules:
            for action in rule.actions:
                self._by_action.setdefault(action, []).append(rule)
        self._ready: dict[tuple[Identity, Action, str], _Ready] = {}
        self._shared: dict[tuple[Action, str, tuple[int, ...]], _Ready] = {}

    def decide(self, identity: Identity, action: Action, destination: str) -> Decision:
        """Decide by the first rule that fits; a filter, about all the names that it covers."""
        if action in NOWHERE:
            for rule in self._by_action.get(action, ()):
                if rule.is_for(identity):
                    return Decision(_verdict(rule), (rule,))
            return Decision(Verdict.DENY, (None,))
        name = names.name_of(destination)
        scheme = destination[: -len(name)] if name else destination
        ready = self._ready_for(identity, action, scheme)
        patterns, rules = ready.patterns, ready.rules
        levels = tuple(name.split("."))
        if not names.is_filter(name):
            for pattern, rule in zip(patterns, rules, strict=True):
                if pattern.matches(levels):
                    return Decision(_verdict(rule), (rule,))
            return Decision(Verdict.DENY, (None,))
        if ready.common is not None and not any(
            meet(pattern.levels, levels) for pattern in ready.personal
        ):
            ready = ready.common  # which thousands of clients share
        decision = ready.decided.get(name)
        if decision is not None:
            return decision
        coverage, deciding = decide(levels, ready.patterns)
        rules = ready.rules
        found = dict.fromkeys(rules[index] if index >= 0 else None for index in deciding)
        ordered = sorted(found, key=lambda rule: rule.number if rule else len(self.rules) + 1)
        decision = Decision(_OF_COVERAGE[coverage], tuple(ordered))
        if len(name) <= _REMEMBERED_CHARACTERS:
            _keep(ready.decided, name, decision)
        return decision

    def _ready_for(self, identity: Identity, action: Action, scheme: str) -> _Ready:
        key = (identity, action, scheme)
        ready = self._ready.get(key)
        if ready is None:
            fitting = [rule for rule in self._by_action.get(action, ()) if rule.is_for(identity)]
            # Thousands of clients share the same rules: decide once for all, after each change.
            numbers = tuple([rule.number for rule in fitting])
            group = (action, scheme, numbers)
            ready = self._shared.get(group)
            if ready is None:
                common = [rule for rule in fitting if rule.number not in self._personal]
                ready = self._made(common, identity, scheme)
                _keep(self._shared, group, ready)
            if not self._personal.isdisjoint(numbers):
                ready = self._made(fitting, identity, scheme, ready)
            _keep(self._ready, key, ready)
        return ready

    def _made(
        self, fitting: Sequence[Rule], identity: Identity, scheme: str, common: _Ready | None = None
    ) -> _Ready:
        patterns: list[Pattern] = []
        rules: list[Rule] = []
        personal: list[Pattern] = []
        for rule in fitting:
            found = self._same.get((rule.number, scheme))
            if found is None:
                found = rule.patterns(identity, scheme)
                personal += found
            patterns += found
            rules += [rule] * len(found)
        return _Ready(tuple(patterns), tuple(rules), tuple(personal), common)


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    if len(kept) >= _READY_MAX:
        kept.clear()
    kept[key] = value


_OF_COVERAGE: Final = {
    Coverage.ALL: Verdict.ALLOW,
    Coverage.SOME: Verdict.FILTER,
    Coverage.NONE: Verdict.DENY,
}


def _verdict(rule: Rule) -> Verdict:
    return Verdict.ALLOW if rule.allows else Verdict.DENY


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    found = _address(address)
    return found is not None and any(
        found.version == network.version and found in network for network in networks
    )


@functools.lru_cache(maxsize=1024)
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address in *text*; None if the transport has none."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def _filled(levels: tuple[str, ...], identity: Identity, allows: bool) -> tuple[str, ...] | None:
    """The levels with the identity's own names filled in; None: they cover nothing.

    A name that could widen the pattern covers nothing in an allowing rule, and any level in a
    denying one: choosing such a name never gains anything.
    """
    values = {"principal": identity.principal, "client_id": identity.client_id}
    filled: list[str] = []
    for level in levels:
        if "{" not in level:
            filled.append(level)
            continue
        used = [values[name] for name in VARIABLE.findall(level)]
        text = VARIABLE.sub(lambda found: values[found[1]], level)
        is_plain = all(value and _SPECIAL.isdisjoint(value) for value in used)
        if not is_plain or text.startswith("$") != level.startswith("$"):
            if allows:
                return None
            text = "*"
        filled.append(text)
    return tuple(filled)
