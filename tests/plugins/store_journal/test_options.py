"""Every option: its default, its limits."""

from __future__ import annotations

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate_store_journal._options import JournalOptions, check


def test_defaults_are_those_of_the_documents() -> None:
    defaults = parse_options(JournalOptions, {})
    assert defaults.directory == "journal"
    assert defaults.journal_max_file_length == 32 << 20
    assert defaults.journal_min_files == 2
    assert defaults.journal_disk_sync_strategy == "always"
    assert defaults.journal_disk_sync_interval == 1.0
    assert defaults.checkpoint_interval == 5.0
    assert defaults.cleanup_interval == 30.0
    assert defaults.disk_free_limit == 50 << 20
    assert defaults.slow_sync_threshold == 0.5
    check(defaults)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("journal_max_file_length", "1kb"),
        ("journal_max_file_length", "5G"),
        ("journal_max_file_length", 32),
        ("journal_min_files", 1),
        ("journal_disk_sync_strategy", "sometimes"),
        ("journal_disk_sync_interval", "0s"),
        ("checkpoint_interval", "0s"),
        ("cleanup_interval", "2d"),
        ("disk_free_limit", "much"),
        ("journal_max_files", 3),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(JournalOptions, {key: value})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (JournalOptions(directory=" "), "directory"),
        (JournalOptions(journal_disk_sync_strategy="x"), "journal_disk_sync_strategy"),
        (JournalOptions(journal_max_file_length=100), "journal_max_file_length"),
        (JournalOptions(checkpoint_interval=60, cleanup_interval=30), "cleanup_interval"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: JournalOptions, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(options)
    assert caught.value.key == key
