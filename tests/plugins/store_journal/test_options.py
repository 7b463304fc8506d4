"""Every option: its default, its limits."""

from __future__ import annotations

from dataclasses import replace

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
    assert defaults.persistent_index is True
    assert defaults.max_checkpoint_message_add_size == 100_000
    assert defaults.memory_limit == 512 << 20
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
        ("journal_file_size", "1kb"),
        ("journal_pool_files", -2),
        ("journal_compact_percentage", 51),
        ("journal_compact_min_files", -1),
        ("archive_data_logs", "yes"),
        ("journal_max_files", 3),
        ("max_checkpoint_message_add_size", 4095),
        ("persistent_index", 1),
        ("memory_limit", "100kb"),
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
        (JournalOptions(archive_data_logs=True, directory_archive=""), "directory_archive"),
        (JournalOptions(checkpoint_interval=60, cleanup_interval=30), "cleanup_interval"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: JournalOptions, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(options)
    assert caught.value.key == key


def test_defaults_of_files_and_compaction_are_those_of_the_artemis_and_amq_documents() -> None:
    defaults = JournalOptions()
    assert defaults.journal_pool_files == -1
    assert defaults.journal_compact_min_files == 10
    assert defaults.journal_compact_percentage == 30
    assert defaults.archive_data_logs is False
    assert defaults.directory_archive == "archive"


@pytest.mark.parametrize(
    ("table", "length"),
    [
        ({}, 32 << 20),
        ({"journal_max_file_length": "20mb"}, 20 << 20),
        ({"journal_file_size": "10mb"}, 10 << 20),
    ],
)
def test_the_length_of_a_file_has_two_names(table: dict[str, object], length: int) -> None:
    options = parse_options(JournalOptions, table)
    check(options)
    assert options.file_length == options.journal_max_file_length == length
    assert replace(options, journal_min_files=3).file_length == length


@pytest.mark.parametrize("length", ["10mb", "20mb", "32mb"])
def test_giving_it_under_both_names_is_refused_even_when_one_is_the_default(length: str) -> None:
    table = {"journal_max_file_length": length, "journal_file_size": "20mb"}
    with pytest.raises(ConfigError, match="journal_max_file_length") as caught:
        parse_options(JournalOptions, table)
    assert caught.value.key == "journal_file_size"


@pytest.mark.parametrize(
    "table", [{"journal_compact_percentage": 0}, {"journal_compact_min_files": 0}]
)
def test_zero_turns_compaction_off(table: dict[str, object]) -> None:
    check(parse_options(JournalOptions, table))
