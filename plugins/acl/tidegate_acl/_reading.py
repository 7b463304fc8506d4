"""Reads the file of rules, and reports what is wrong or has no effect."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from tidegate.spi import Action, ConfigError, names, unknown_key
from tidegate.spi.private_files import read_text
from tidegate_acl._rules import NOWHERE, VARIABLE, Network, Rule, Rules

#: Larger is a mistake: 1 MiB are some 10,000 rules.
FILE_BYTES_MAX: Final = 1 << 20

#: Actions that apply to queues only, and to topics only.
OF_QUEUES: Final = frozenset({Action.CONSUME, Action.BROWSE, Action.CREATE})
OF_TOPICS: Final = frozenset({Action.SUBSCRIBE, Action.RETAIN})

#: What ``"all"`` means: admin rights must always be named.
ALL: Final = "all"

#: Prefix of a topic in MQTT syntax, as in ``mqtt:devices/+/state``.
MQTT_PREFIX: Final = "mqtt:"

#: How an MQTT client writes the name of a queue.
_MQTT_QUEUE: Final = "$queue/"

_KEYS: Final = (
    "allow",
    "deny",
    "destinations",
    "principals",
    "groups",
    "client_ids",
    "addresses",
)

_HEADING: Final = re.compile(r"^\s*\[\[\s*rules\s*\]\]", re.MULTILINE)

#: IPv4-mapped IPv6 addresses, which are compared as IPv4.
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")


def read_rules(path: Path) -> Rules:
    """Read the file. Raises: ConfigError saying what is wrong, and where."""
    text = read_text(path, key="rules", bytes_max=FILE_BYTES_MAX)
    try:
        return parse_rules(text)
    except ConfigError as error:
        where = f"{error.key}: " if error.key else ""
        raise ConfigError(f"{path}: {where}{error.problem}", key="rules") from None


def parse_rules(text: str) -> Rules:
    """Raises: ConfigError; its key says which rule and key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from None
    for key in document:
        if key != "rules":
            raise unknown_key(key, ["rules"])
    found: object = document.get("rules")
    tables = cast("list[object]", found) if isinstance(found, list) else []
    if not tables:
        # An empty file would refuse everything to everybody; it is probably being written.
        raise ConfigError("there is no [[rules]] table; to deny everything, write a rule that does")
    headings = list(_HEADING.finditer(text))
    lines = [text.count("\n", 0, item.end()) + 1 for item in headings]
    if len(lines) != len(tables):  # a text that looks like a heading
        lines = [0] * len(tables)
    rules: list[Rule] = []
    for index, table in enumerate(tables):
        where = f"rule {index + 1}" + (f" (line {lines[index]})" if lines[index] else "")
        try:
            if not isinstance(table, dict):
                raise ConfigError("is not a table")
            rules.append(_rule(index + 1, lines[index], cast("dict[str, object]", table)))
        except ConfigError as error:
            key = f"{where}, {error.key}" if error.key else where
            raise ConfigError(error.problem, key=key) from None
    return Rules(rules, _without_effect(rules))


def _without_effect(rules: Sequence[Rule]) -> list[str]:
    """Warnings for the author of the rules."""
    found: list[str] = []
    decided: dict[Action, Rule] = {}
    for rule in rules:
        if rule.actions <= decided.keys():
            before = max((decided[action] for action in rule.actions), key=lambda item: item.number)
            found.append(
                f"{rule.text()} has no effect: {before.text()} already decides everything "
                "that it matches"
            )
        if rule.is_for_all:
            for action in rule.actions:
                decided.setdefault(action, rule)
    return found


def _rule(number: int, line: int, table: Mapping[str, object]) -> Rule:
    for key in table:
        if key not in _KEYS:
            raise unknown_key(key, _KEYS)
    if ("allow" in table) is ("deny" in table):
        raise ConfigError("a rule needs either `allow` or `deny`, with its actions")
    allows = "allow" in table
    has_destinations = "destinations" in table
    key = "allow" if allows else "deny"
    actions = _actions(key, table, has_destinations)
    named = frozenset(action for action in actions if action.value in _texts(key, table))
    destinations = _destinations(table) if has_destinations else None
    if destinations is not None:
        _check_kinds(named, {scheme for scheme, _ in destinations}, key)
    return Rule(
        number,
        line,
        allows,
        actions,
        destinations=destinations,
        principals=_names("principals", table),
        groups=_names("groups", table),
        client_ids=_names("client_ids", table),
        addresses=_addresses(table),
    )


def _texts(key: str, table: Mapping[str, object]) -> list[str]:
    value = table[key]
    items = [value] if isinstance(value, str) else value
    if (
        not isinstance(items, list)
        or not items
        or not all(isinstance(item, str) and item for item in cast("list[object]", items))
    ):
        raise ConfigError("must be a string or a list of strings, with at least one", key=key)
    return cast("list[str]", items)


def _names(key: str, table: Mapping[str, object]) -> frozenset[str] | None:
    return frozenset(_texts(key, table)) if key in table else None


def _actions(key: str, table: Mapping[str, object], has_destinations: bool) -> frozenset[Action]:
    known = {action.value: action for action in Action}
    found: set[Action] = set()
    for text in _texts(key, table):
        if text == ALL:
            found |= set(Action) - ({*NOWHERE} if has_destinations else {Action.ADMIN})
        elif text not in known:
            raise ConfigError(
                f"there is no action {text!r}; the actions are {', '.join(known)} and {ALL}",
                key=key,
            )
        elif known[text] in NOWHERE and has_destinations:
            raise ConfigError(
                f"{text} does not apply to destinations; write it in a rule without `destinations`",
                key=key,
            )
        else:
            found.add(known[text])
    return frozenset(found)


def _check_kinds(named: frozenset[Action], schemes: set[str], key: str) -> None:
    """Raises: ConfigError for an action that applies to none of these kinds of destinations."""
    for actions, scheme, kind in (
        (OF_QUEUES, names.QUEUE_PREFIX, "queues"),
        (OF_TOPICS, names.TOPIC_PREFIX, "topics"),
    ):
        for action in sorted(named & actions, key=lambda item: item.value):
            if schemes.isdisjoint(("", scheme)):
                raise ConfigError(
                    f"{action.value} applies to {kind} only, and `destinations` names none",
                    key=key,
                )


def _of_mqtt(topic: str) -> tuple[str, str]:
    """(scheme, NAME) of a topic filter in MQTT syntax. Raises: ConfigError."""
    if topic.startswith("$share/"):
        raise ConfigError(
            f"{MQTT_PREFIX + topic!r}: members of a share group need the permission for "
            "the filter after the group's name; write only that",
            key="destinations",
        )
    if topic.startswith(_MQTT_QUEUE):
        return names.QUEUE_PREFIX, names.swap_separators(topic.removeprefix(_MQTT_QUEUE))
    return names.TOPIC_PREFIX, names.swap_separators(topic)


def _check_first(scheme: str, name: str, text: str) -> None:
    """Raises: ConfigError for a name that cannot exist, or that is never checked."""
    first = name.partition(".")[0]
    if first == names.TEMPORARY_LEVEL:
        raise ConfigError(
            f"{text!r}: access to temporary destinations is not checked", key="destinations"
        )
    if first in ("$queue", "$share") and scheme != names.QUEUE_PREFIX:
        raise ConfigError(
            f"{text!r}: no topic has such a name; write queue://NAME, or {MQTT_PREFIX}$queue/NAME",
            key="destinations",
        )


def _destinations(table: Mapping[str, object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: list[tuple[str, tuple[str, ...]]] = []
    for text in _texts("destinations", table):
        if text.startswith(MQTT_PREFIX):
            scheme, name = _of_mqtt(text.removeprefix(MQTT_PREFIX))
        else:
            has_scheme = names.is_queue(text) or names.is_topic(text)
            name = names.name_of(text) if has_scheme else text
            scheme = text.removesuffix(name) if has_scheme else ""
            if "://" in name:
                raise ConfigError(
                    f"{text!r} is neither queue://… nor topic://…", key="destinations"
                )
            if "/" in name and "." not in name:
                raise ConfigError(
                    f"{text!r}: levels are separated by '.', and the wildcards are '*' "
                    f"and '>'; an MQTT topic is written {MQTT_PREFIX + name!r}",
                    key="destinations",
                )
        for variable in VARIABLE.findall(name):
            if variable not in ("principal", "client_id"):
                raise ConfigError(
                    f"{text!r}: there are {{principal}} and {{client_id}}, not {{{variable}}}",
                    key="destinations",
                )
        try:
            names.check_filter(name)
        except ValueError as error:
            raise ConfigError(str(error), key="destinations") from None
        _check_first(scheme, name, text)
        found.append((scheme, tuple(name.split("."))))
    return tuple(found)


def _addresses(table: Mapping[str, object]) -> tuple[Network, ...] | None:
    if "addresses" not in table:
        return None
    found: list[Network] = []
    for text in _texts("addresses", table):
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise ConfigError(f"{error}", key="addresses") from None
        if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
            raise ConfigError(f"{text!r}: write it as an IPv4 address", key="addresses")
        found.append(network)
    return tuple(found)
