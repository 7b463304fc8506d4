"""No option is ignored in silence: one that would do nothing is refused by its name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import ConfigError, StoreContext, parse_options
from tidegate_store_journal import JournalOptions, plugin
from tidegate_store_journal.checks import IN_MEMORY_TOO, idle_without_files, is_written
from tidegate_store_journal.presets import CHOICES

IDLE: list[tuple[str, dict[str, object]]] = [
    ("memory_limit", {"memory_limit": "512mb"}),
    ("journal_disk_sync_interval", {"journal_disk_sync_interval": "1s"}),
    (
        "journal_disk_sync_interval",
        {"journal_disk_sync_interval": "1s", "journal_disk_sync_strategy": "never"},
    ),
    (
        "journal_disk_sync_strategy",
        {"journal_datasync": False, "journal_disk_sync_strategy": "always"},
    ),
    ("sync_on_write", {"journal_datasync": False, "sync_on_write": True}),
    (
        "journal_sync_transactional",
        {"journal_sync_transactional": False, "journal_disk_sync_strategy": "periodic"},
    ),
    (
        "journal_sync_non_transactional",
        {"journal_sync_non_transactional": False, "journal_datasync": False},
    ),
    ("directory_archive", {"directory_archive": "archive"}),
    ("journal_pool_files", {"journal_pool_files": -1, "archive_data_logs": True}),
    (
        "journal_compact_min_files",
        {"journal_compact_min_files": 10, "journal_compact_percentage": 0},
    ),
    (
        "journal_compact_percentage",
        {"journal_compact_min_files": 0, "journal_compact_percentage": 30},
    ),
    (
        "journal_compact_percentage",
        {"journal_compact_min_files": 0, "journal_compact_percentage": 30, "preset": "flatfile"},
    ),
    ("archive_corrupted_index", {"archive_corrupted_index": True, "persistent_index": False}),
    ("filepool_cleanratio", {"preset": "flatfile", "filepool_limit": 0, "filepool_cleanratio": 9}),
    ("message_cleanup", {"preset": "flatfile", "filepool_limit": 0, "message_cleanup": True}),
]
ASKED_FOR = {field.name for field in fields(JournalOptions)} - IN_MEMORY_TOO | {
    key for key, _ in IDLE
}
AT_WORK: list[dict[str, object]] = [
    {"journal_disk_sync_interval": "1s", "journal_disk_sync_strategy": "periodic"},
    {"journal_datasync": False, "journal_disk_sync_strategy": "never"},
    {"journal_sync_transactional": False, "journal_sync_non_transactional": False},
    {"archive_data_logs": True, "directory_archive": "old"},
    {"journal_pool_files": 0},
    {"journal_compact_min_files": 0, "journal_compact_percentage": 0},
    {"archive_corrupted_index": True},
    {"preset": "flatfile", "filepool_limit": 1, "filepool_cleanratio": 9, "message_cleanup": True},
    *({"preset": name} for name in CHOICES),
]


def create(where: Path, table: dict[str, object], *, persistent: bool = True) -> Any:
    context = StoreContext(where, "test", persistent=persistent)
    options = parse_options(JournalOptions, table)
    return plugin.JournalStoreFactory().create(context, options)


@pytest.mark.parametrize(("key", "table"), IDLE)
def test_an_option_that_would_do_nothing_is_refused_by_name(
    key: str, table: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="does nothing") as caught:
        create(tmp_path, table)
    assert caught.value.key == key


@pytest.mark.parametrize("table", AT_WORK)
def test_the_same_options_are_accepted_where_they_do_something(
    table: dict[str, object], tmp_path: Path
) -> None:
    create(tmp_path, table)
    assert list(tmp_path.iterdir()) == []


def test_without_files_nothing_is_refused_but_named() -> None:
    table: dict[str, object] = {"directory": "journal", "journal_datasync": False}
    options = parse_options(JournalOptions, {**table, "memory_limit": "1gb"})
    assert idle_without_files(options) == ["directory", "journal_datasync"]
    assert idle_without_files(parse_options(JournalOptions, {"preset": "flatfile"})) == []


def test_a_configuration_starts_with_persistent_switched_off(tmp_path: Path) -> None:
    create(tmp_path, {"directory": "here", "archive_data_logs": True}, persistent=False)
    create(tmp_path, {"memory_limit": "1gb"}, persistent=False)


@pytest.mark.parametrize("key", sorted(ASKED_FOR))
def test_what_nobody_wrote_is_told_from_the_same_value_written(key: str) -> None:
    default: Any = getattr(JournalOptions(), key)
    assert not is_written(JournalOptions(), key)
    if isinstance(default, bool):
        written: Any = not default
    else:
        kinds: tuple[Any, ...] = (int, float, str, tuple)
        written = next((kind(default) for kind in kinds if isinstance(default, kind)), True)
    changes: dict[str, Any] = {key: written}
    assert is_written(JournalOptions(**changes), key)
