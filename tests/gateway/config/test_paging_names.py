"""Artemis's names for paging in a table of destinations."""

from typing import Any

import pytest

from tidegate.config import parse_config, resolve
from tidegate.plugins import PluginHost
from tidegate.spi import ConfigError

DEFAULTS: dict[str, Any] = {
    name: getattr(parse_config("[[destinations]]\nmatch='a'").destinations[0].policy, name)
    for name in parse_config("[[destinations]]\nmatch='a'").destinations[0].policy.__slots__
}


def text_of(options: dict[str, object], match: str) -> str:
    return "\n".join(
        [f"[[destinations]]\nmatch = {match!r}", *(f"{k} = {v!r}" for k, v in options.items())]
    )


def changed(options: dict[str, object], match: str = "a") -> dict[str, Any]:
    """What these options make of the defaults."""
    (table,) = parse_config(text_of(options, match)).destinations
    found = {name: getattr(table.policy, name) for name in DEFAULTS if name != "match"}
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


def error_of(options: dict[str, object], match: str = "a") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(parse_config(text_of(options, match)), PluginHost())
    return caught.value


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ({"max-size-bytes": "10M"}, {"memory_limit": 10 << 20}),
        ({"max_size_bytes": 104857600}, {"memory_limit": 104857600}),
        ({"max-size-bytes": "104857600"}, {"memory_limit": 104857600}),
        ({"max-size-bytes": 0}, {"memory_limit": 1}),
        ({"max-size-messages": 1000}, {"memory_messages": 1000}),
        ({"max_size_messages": "1000"}, {"memory_messages": 1000}),
        ({"max-size-messages": 0}, {"memory_messages": 1}),
        ({"max-size-messages": -1}, {}),
        ({"address-full-policy": "PAGE", "max-size-messages": 5}, {"memory_messages": 5}),
        ({"page-size-bytes": "1M"}, {"page_bytes": 1 << 20}),
        ({"max-read-page-bytes": "20M"}, {"page_bytes": 20 << 20}),
        ({"max-read-page-bytes": -1}, {"page_bytes": 0}),
        ({"prefetch_page_bytes": "1 MiB"}, {"page_bytes": 1 << 20}),
        ({"max-read-page-messages": 50}, {"page_count": 50}),
        ({"prefetch-page-messages": "-1"}, {"page_count": 65535}),
        ({"slow-consumer-threshold": 5}, {"slow_consumer_rate": 5}),
        ({"slow_consumer_threshold": "-1"}, {}),
        (
            {"slow-consumer-threshold": 1, "slow-consumer-policy": "KILL"},
            {"slow_consumer_rate": 1, "slow_consumer_act": "disconnect"},
        ),
        (
            {"slow-consumer-threshold": 1, "slow_consumer_policy": "NOTIFY"},
            {"slow_consumer_rate": 1},
        ),
    ],
)
def test_what_is_held_in_memory_and_read_at_once(
    written: dict[str, object], ours: dict[str, object]
) -> None:
    assert changed(written) == ours


BOTH = {"bytes_max": 10 << 20, "subscription_bytes_max": 10 << 20}


@pytest.mark.parametrize(
    ("match", "written", "ours"),
    [
        (
            "a",
            {"address-full-policy": "FAIL", "max-size-bytes": "10M"},
            {**BOTH, "overflow": "refuse", "subscription_overflow": "refuse"},
        ),
        (
            "a",
            {"max_size_bytes": "10M", "address_full_policy": "block", "max_size_messages": -1},
            {**BOTH, "subscription_messages_max": 0, "subscription_overflow": "slow"},
        ),
        (
            "queue://a",
            {"address-full-policy": "DROP", "max-size-messages": 9},
            {"messages_max": 9, "overflow": "drop_newest"},
        ),
        (
            "topic://a",
            {"address-full-policy": "DROP", "max-size-messages": 9},
            {"subscription_messages_max": 9, "subscription_overflow": "drop_newest"},
        ),
        (
            "queue://a",
            {"max-size-bytes": "1M", "page-limit-messages": 7, "page-full-policy": "FAIL"},
            {"memory_limit": 1 << 20, "messages_max": 7, "overflow": "refuse"},
        ),
        (
            "queue://a",
            {"page_limit_bytes": "10M", "page_limit_messages": -1, "page_limit_policy": "DROP"},
            {"bytes_max": 10 << 20, "overflow": "drop_newest"},
        ),
    ],
)
def test_what_a_list_may_hold_at_all(
    match: str, written: dict[str, object], ours: dict[str, object]
) -> None:
    assert changed(written, match) == ours
    resolve(parse_config(text_of(written, match)), PluginHost())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"max-size-bytes": "10 apples"}, "not a size"),
        ({"max-size-bytes": -2}, "nor -1 for no limit"),
        ({"max-size-bytes": 1.5}, "neither a size such as"),
        ({"max-size-bytes": -1}, "memory_limit always has a limit"),
        ({"max-size-messages": "10M"}, "neither a number of messages"),
        ({"max-read-page-messages": 100_000}, "above the maximum"),
        ({"page-size-bytes": 0}, "-1 for no limit"),
        ({"max-size-bytes": 0, "address-full-policy": "DROP"}, "0 would accept nothing"),
        ({"address-full-policy": "SPILL"}, "not one of 'PAGE', 'BLOCK', 'FAIL', 'DROP'"),
        ({"address-full-policy": "BLOCK"}, "needs max-size-bytes or max-size-messages"),
        ({"max-size-bytes": -1, "address-full-policy": "BLOCK"}, "needs max-size-bytes or"),
        ({"page-full-policy": "FAIL"}, "without page-limit-bytes or page-limit-messages"),
        ({"page-limit-bytes": "1M", "page-full-policy": "BLOCK"}, "not one of 'FAIL', 'DROP'"),
        ({"page-limit-bytes": "10G"}, "choose with page-full-policy"),
        (
            {
                "address-full-policy": "FAIL",
                "max-size-bytes": "1M",
                "page-full-policy": "DROP",
                "page-limit-bytes": "1M",
            },
            "overflow, as address-full-policy does",
        ),
        ({"max-size-bytes": "1M", "memory_limit": "1mb"}, "is another name for memory_limit"),
        ({"page-size-bytes": "1M", "max-read-page-bytes": "1M"}, "as page-size-bytes does"),
        ({"cursor": "vm", "address-full-policy": "PAGE"}, "'vm' cannot page"),
        ({"slow-consumer-threshold": 0}, "-1 for off"),
        ({"slow-consumer-threshold": 0.5}, "slow_consumer_rate allows fractions"),
        ({"slow-consumer-policy": "KILL"}, "slow_consumer_age and slow_consumer_rate are off"),
        ({"slow-consumer-policy": "kick"}, "not one of 'NOTIFY', 'KILL'"),
        ({"slow-consumer-check-period": 5}, "checked every 10 seconds"),
        ({"global-max-size": "1G"}, "cursor_memory_limit and unstored_memory_limit in [broker]"),
        ({"min_disk_free": "1G"}, "disk_free_limit and temporary_free_limit in [broker]"),
        ({"policyEntry": "x"}, "each [[destinations]] table takes the place of a policyEntry"),
    ],
)
def test_each_mistake_names_the_key_as_it_was_written(
    written: dict[str, object], said: str
) -> None:
    error = error_of(written)
    assert error.key.removeprefix("destinations[0].") in written
    assert said in error.problem


def test_limits_that_another_policy_makes_pointless_are_refused() -> None:
    both: dict[str, object] = {"address-full-policy": "FAIL", "max-size-bytes": "1M"}
    error = error_of({"page-limit-bytes": "1M", **both})
    assert error.key == "destinations[0].page-limit-bytes"
    assert "no effect with address-full-policy = 'FAIL'" in error.problem
    error = error_of(both, "topic://$temporary.>")
    assert "limits of their cursor" in error.problem
