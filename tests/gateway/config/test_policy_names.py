"""The documents' names in a table of destinations."""

import pytest

from tidegate.config import parse_config
from tidegate.config._document_names import snake_case
from tidegate.config._policy_names import CURSOR_NAMES
from tidegate.spi import ConfigError

CHOICES = [
    (key, value, name.options[0], ours)
    for name in CURSOR_NAMES
    for key in name.written
    for value, ours in name.values.items()
]


def read(text: str):
    (table,) = parse_config(f'[[destinations]]\nmatch = "a"\n{text}').destinations
    return table


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value


@pytest.mark.parametrize(("key", "value", "option", "ours"), CHOICES)
def test_each_cursor_has_its_names_as_written_and_in_snake_case(
    key: str, value: str, option: str, ours: str
) -> None:
    for written in (key, snake_case(key)):
        for text in (value, snake_case(value)):
            table = read(f'{written} = "{text}"')
            assert getattr(table.policy, option) == ours
            assert table.written == {"match": "match", option: written}


def test_the_names_are_those_of_the_chapter() -> None:
    keys = {key for key, *_ in CHOICES}
    values = {value for _, value, *_ in CHOICES}
    assert {"pendingQueuePolicy", "pendingSubscriberPolicy"} <= keys
    assert "pendingDurableSubscriberMessageStoragePolicy" in keys
    assert "pendingDurableSubscriberPolicy" in keys
    assert {"vmQueueCursor", "fileQueueCursor", "storeCursor", "vmCursor", "fileCursor"} <= values
    assert {"vmDurableCursor", "fileDurableSubscriberCursor"} <= values
    assert snake_case("pendingQueuePolicy") == "pending_queue_policy"
    assert snake_case("page-size-bytes") == "page_size_bytes"


@pytest.mark.parametrize(("value", "ours"), [("true", "spool"), ("false", "store")])
def test_tmp_storage_is_where_messages_are_that_are_not_persistent(value: str, ours: str) -> None:
    for written in ("tmp-storage", "tmp_storage"):
        table = read(f"{written} = {value}")
        assert table.policy.non_persistent == ours
        assert table.written == {"match": "match", "non_persistent": written}


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('tmp-storage = "spool"', "tmp-storage", "neither true nor false; or use non_persistent"),
        ("tmp-storage = true\nnon_persistent = 'spool'", "tmp-storage", "keep only one of them"),
        ("non_persistent = 'file'", "non_persistent", "spool"),
        (
            'pendingDurableSubscriberPolicy = "vmQueueCursor"',
            "pendingDurableSubscriberPolicy",
            "is a value of pendingQueuePolicy; here use one of 'vmDurableCursor'",
        ),
        (
            'pending_queue_policy = "vm_durable_cursor"',
            "pending_queue_policy",
            "is a value of pendingDurableSubscriberMessageStoragePolicy",
        ),
        (
            'pendingSubscriberPolicy = "storeCursor"',
            "pendingSubscriberPolicy",
            "pendingQueuePolicy",
        ),
        ('pendingQueuePolicy = "vm"', "pendingQueuePolicy", "or use cursor instead"),
        ("pendingQueuePolicy = 3", "pendingQueuePolicy", "not one of 'vmQueueCursor'"),
        ('cursor = "vmQueueCursor"\nmatchh = "b"', "matchh", "did you mean 'match'"),
        ('pendingQueuPolicy = "vmQueueCursor"', "pendingQueuPolicy", "mean 'pendingQueuePolicy'"),
        (
            'cursor = "vm"\npendingQueuePolicy = "vmQueueCursor"',
            "pendingQueuePolicy",
            "is another name for cursor; keep only one of them",
        ),
        (
            'pendingQueuePolicy = "vmQueueCursor"\ncursor = "vm"',
            "pendingQueuePolicy",
            "is another name for cursor; keep only one of them",
        ),
        (
            'pendingQueuePolicy = "vmQueueCursor"\npending_queue_policy = "vmQueueCursor"',
            "pending_queue_policy",
            "means cursor, as pendingQueuePolicy does",
        ),
    ],
)
def test_each_mistake_names_the_key_as_it_was_written(text: str, key: str, said: str) -> None:
    error = error_of(text)
    assert error.key == f"destinations[0].{key}"
    assert said in error.problem


def test_what_an_option_of_ours_would_be_told_is_told_under_the_documents_name(site) -> None:
    from tidegate.config import resolve

    site.add_toys()
    text = '[store]\nplugin = "toy"\n[[listeners]]\nprotocol = "toy"\n[[destinations]]\n'
    text += 'match = "queue://a"\ncursor = "toy"\npendingSubscriberPolicy = "vmCursor"\n'
    cursor = "from tidegate.spi import PluginInfo, hookimpl\n"
    cursor += 'tidegate_plugin = PluginInfo("a cursor", (1, 0))\n'
    cursor += "class Factory:\n    needs_store = spools = False\n    create = print\n"
    cursor += "@hookimpl\ndef register_cursor():\n    return Factory()\n"
    for name in ("store", "file", "vm"):
        site.add(f"toy-{name}", {f"cursor-{name}": f"toy_{name}"}, cursor)
    with pytest.raises(ConfigError) as caught:
        resolve(parse_config(text), site.host())
    assert caught.value.key == "destinations[0].pendingSubscriberPolicy"
    assert caught.value.problem.startswith("has no effect")
