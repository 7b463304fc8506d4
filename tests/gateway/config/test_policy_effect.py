"""An option of a destination's table that would change nothing is an error."""

import json
from dataclasses import dataclass

import pytest

from tidegate.config import resolve
from tidegate.config._load import parse_config
from tidegate.config._policy_effect import Lists, lists_of
from tidegate.spi import ConfigError

CURSOR = """
from tidegate.spi import PluginInfo, hookimpl
tidegate_plugin = PluginInfo("a cursor", (1, 0))
class Factory:
    needs_store = {needs_store}
    spools = {spools}
    def create(self, context):
        raise NotImplementedError
@hookimpl
def register_cursor():
    return Factory()
"""
BASE = '[store]\nplugin = "toy"\n[[listeners]]\nprotocol = "toy"\n[[destinations]]\n'


@dataclass
class Tables:
    site: object
    broker: str = ""

    def resolve(self, match: str, **options: object) -> None:
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in {"match": match, **options}.items()
        ]
        text = f"[broker]\n{self.broker}\n{BASE}"
        resolve(parse_config(text + "\n".join(lines)), self.site.host())  # type: ignore[attr-defined]  # the fixture has no type


@pytest.fixture
def tables(site) -> Tables:
    site.add_toys()
    for name in ("store", "file", "vm"):
        source = CURSOR.format(needs_store=name == "store", spools=name == "file")
        site.add(f"toy-{name}", {f"cursor-{name}": f"toy_{name}"}, source)
    return Tables(site)


@pytest.mark.parametrize(
    ("match", "options", "said"),
    [
        ("queue://a.>", {"durable_cursor": "vm"}, "topic subscriptions that are stored"),
        ("queue://a.>", {"subscriber_cursor": "vm"}, "'queue://a.>' matches none"),
        ("queue://a.>", {"subscription_messages_max": 5}, "'queue://a.>' matches none"),
        (
            "a",
            {"slow_consumer_act": "disconnect"},
            "slow_consumer_age and slow_consumer_rate are off",
        ),
        ("queue://a.>", {"subscription_expiry": "1h"}, "'queue://a.>' matches none"),
        ("topic://a.>", {"messages_max": 5}, "'topic://a.>' matches none"),
        ("topic://a.>", {"overflow_dead_letter": True}, "'topic://a.>' matches none"),
        ("queue://>", {"subscription_overflow": "refuse"}, "'queue://>' matches none"),
        (
            "topic://a.>",
            {"non_persistent": "spool"},
            "it applies to queues, and 'topic://a.>' matches none",
        ),
        ("queue://$temporary.>", {"non_persistent": "spool"}, "it applies to queues"),
        (
            "queue://a",
            {"non_persistent": "store", "temporary_limit": "1gb"},
            "no cursor of this table uses temporary files ('store')",
        ),
        ("topic://$temporary.>", {"max_deliveries": 3}, "queues and topic subscriptions"),
        ("topic://$temporary.>", {"dead_letter": "dead"}, "queues and topic subscriptions"),
        ("a", {"subscription_messages_max": 0, "subscription_overflow": "refuse"}, "unlimited"),
        ("a", {"overflow": "refuse"}, "messages_max and bytes_max are unlimited"),
        ("a", {"age_max": "1h", "overflow": "drop_oldest"}, "unlimited"),
        (
            "a",
            {"messages_max": 5, "overflow_wait": "1s"},
            "'slow', and this option applies only to 'refuse'",
        ),
        (
            "a",
            {"messages_max": 5, "overflow_dead_letter": True},
            "nothing is dropped without age_max",
        ),
        (
            "queue://a",
            {"messages_max": 5, "overflow": "disconnect", "overflow_dead_letter": True},
            "nothing is dropped",
        ),
        (
            "a",
            {"subscription_overflow_wait": "1s"},
            "'drop_oldest', and this option applies only to 'refuse'",
        ),
        ("a", {"max_deliveries": 0, "dead_letter": "dead"}, "max_deliveries is 0"),
        ("queue://a", {"cursor_memory_high_water_mark": 50}, "read from the store ('store')"),
        ("queue://a", {"temporary_limit": "1gb"}, "('store')"),
        ("queue://a", {"cursor": "vm", "temporary_limit": "1gb"}, "('vm')"),
        ("a", {"cursor": "vm", "temporary_limit": "1gb"}, "('vm')"),
        ("topic://a", {"subscriber_cursor": "vm", "temporary_limit": "1gb"}, "('store', 'vm')"),
        (
            "topic://a",
            {"durable_cursor": "vm", "subscriber_cursor": "vm", "cursor": "vm"},
            "durable_cursor and subscriber_cursor already cover everything",
        ),
        (
            "queue://$temporary.>",
            {"subscriber_cursor": "vm", "cursor": "vm"},
            "already cover everything",
        ),
    ],
)
def test_what_changes_nothing_is_refused_by_its_key(
    tables: Tables, match: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tables.resolve(match, **options)
    assert caught.value.key == f"destinations[0].{list(options)[-1]}"
    assert caught.value.problem.startswith("has no effect: ")
    assert said in caught.value.problem


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("a", {"durable_cursor": "vm", "subscriber_cursor": "vm", "cursor": "vm"}),
        ("queue://a", {"non_persistent": "spool", "temporary_limit": "1gb"}),
        ("queue://a", {"non_persistent": "spool", "cursor_memory_high_water_mark": 50}),
        (">", {"non_persistent": "spool"}),
        ("queue://>", {"subscriber_cursor": "vm", "cursor": "vm"}),  # of temporary queues
        ("queue://a", {"cursor": "file", "temporary_limit": "1gb", "page_count": 7}),
        ("queue://*", {"temporary_limit": "1gb"}),  # temporary queues are in files by default
        (
            "topic://a",
            {"cursor": "store", "temporary_limit": "1gb", "subscription_messages_max": 1},
        ),
        ("topic://a", {"cursor": "vm", "durable_cursor": "file", "temporary_limit": "1gb"}),
        ("a", {"max_deliveries": 1, "dead_letter": "dead", "memory_limit": "1mb"}),
        ("a", {"slow_consumer_rate": 0.5, "slow_consumer_act": "disconnect"}),
        ("a", {"subscription_overflow": "drop_newest", "subscription_overflow_dead_letter": True}),
        ("a", {"bytes_max": "1mb", "overflow": "refuse", "overflow_wait": "1s"}),
        ("queue://a", {"age_max": "1h", "overflow_dead_letter": True, "max_deliveries": 0}),
        ("a", {"subscription_overflow": "disconnect", "subscription_overflow_dead_letter": True}),
        ("queue://a", {"cursor": "vm", "cursor_memory_high_water_mark": 50}),
        ("topic://a", {"cursor_memory_high_water_mark": 50}),  # not stored: in files
        ("queue://a", {"cursor": "vm", "page_count": 7}),  # what was there before the start
    ],
)
def test_what_changes_something_is_accepted(
    tables: Tables, match: str, options: dict[str, object]
) -> None:
    tables.resolve(match, **options)


@pytest.mark.parametrize(
    ("match", "lists"),
    [
        ("a.>", {Lists.QUEUE, Lists.DURABLE, Lists.UNSTORED}),
        (">", set(Lists)),
        ("queue://a", {Lists.QUEUE}),
        ("queue://*.x", {Lists.QUEUE, Lists.TEMPORARY}),
        ("queue://$temporary.>", {Lists.TEMPORARY}),
        ("topic://>", {Lists.DURABLE, Lists.UNSTORED}),
        ("topic://$temporary.>", {Lists.UNSTORED}),
    ],
)
def test_a_match_says_which_lists_there_can_be(match: str, lists: set[Lists]) -> None:
    assert lists_of(match) == lists


def test_a_part_of_what_is_unlimited_is_refused(tables: Tables) -> None:
    tables.broker = "unstored_memory_limit = 0"
    with pytest.raises(ConfigError, match="is unlimited") as caught:
        tables.resolve("queue://a", cursor="vm", cursor_memory_high_water_mark=50)
    assert caught.value.key == "destinations[0].cursor_memory_high_water_mark"
