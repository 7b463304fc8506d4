"""Every option: its default, its limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate_store_journal.checks import check
from tidegate_store_journal.options import JournalOptions


def test_defaults_are_those_of_the_documents() -> None:
    defaults = parse_options(JournalOptions, {})
    assert defaults.directory == "journal"
    assert defaults.journal_max_file_length == 32 << 20
    assert defaults.journal_min_files == 2
    assert defaults.journal_disk_sync_strategy == "always"
    assert defaults.journal_disk_sync_interval == 1.0
    assert defaults.checkpoint_interval == 5.0
    assert defaults.cleanup_interval == 30.0
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
        ("journal_file_size", "1kb"),
        ("journal_pool_files", -2),
        ("journal_compact_percentage", 51),
        ("journal_compact_min_files", -1),
        ("archive_data_logs", "yes"),
        ("journal_max_files", 3),
        ("max_checkpoint_message_add_size", 4095),
        ("persistent_index", 1),
        ("memory_limit", "100kb"),
        ("journal_type", "AIO"),
        ("journal_max_io", 0),
        ("journal_max_io", 4097),
        ("journal_buffer_size", "1kb"),
        ("journal_buffer_timeout", "11s"),
        ("journal_buffer_timeout", 3333333),
        ("journal_datasync", "yes"),
        ("journal_sync_transactional", 1),
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
        (JournalOptions(journal_type="nio"), "journal_type"),
        (JournalOptions(journal_max_io=2), "journal_max_io"),
        (JournalOptions(journal_type="MAPPED", journal_max_io=500), "journal_max_io"),
        (JournalOptions(journal_buffer_size=490 << 10), "journal_buffer_size"),
        (JournalOptions(journal_type="MAPPED", journal_buffer_size=8192), "journal_buffer_size"),
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
    assert defaults.journal_type == "NIO"
    assert defaults.journal_buffer_size == 490 << 10
    assert defaults.journal_sync_transactional is True
    assert defaults.journal_sync_non_transactional is True
    assert defaults.journal_datasync is True


@pytest.mark.parametrize(
    ("table", "max_io"),
    [
        ({}, 1),
        ({"journal_type": "MAPPED"}, 1),
        ({"journal_max_io": 1}, 1),
        ({"journal_type": "ASYNCIO"}, 500),
        ({"journal_type": "ASYNCIO", "journal_max_io": 7}, 7),
    ],
)
def test_how_many_requests_are_under_way_depends_on_the_type(
    table: dict[str, object], max_io: int
) -> None:
    options = parse_options(JournalOptions, table)
    check(options)
    assert options.max_io == max_io


@pytest.mark.parametrize(
    "table",
    [
        {"journal_buffer_size": "8kb", "journal_type": "ASYNCIO"},
        {"journal_buffer_size": "8kb", "journal_buffer_timeout": "3333us"},
    ],
)
def test_the_size_of_the_buffer_is_accepted_where_it_does_something(
    table: dict[str, object],
) -> None:
    check(parse_options(JournalOptions, table))


@pytest.mark.parametrize(("sync_on_write", "strategy"), [(True, "always"), (False, "never")])
def test_sync_on_write_is_the_strategy_under_the_name_of_the_amq_document(
    sync_on_write: bool, strategy: str
) -> None:
    options = parse_options(JournalOptions, {"sync_on_write": sync_on_write})
    check(options)
    assert options.journal_disk_sync_strategy == options.sync_strategy == strategy
    assert replace(options, journal_min_files=3).sync_strategy == strategy
    with pytest.raises(ConfigError, match="journal_disk_sync_strategy") as caught:
        parse_options(
            JournalOptions,
            {"sync_on_write": sync_on_write, "journal_disk_sync_strategy": strategy},
        )
    assert caught.value.key == "sync_on_write"


@pytest.mark.parametrize("strategy", ["always", "periodic", "never"])
def test_without_datasync_nothing_is_synced_whatever_the_strategy(strategy: str) -> None:
    table = {"journal_disk_sync_strategy": strategy}
    assert parse_options(JournalOptions, table).sync_strategy == strategy
    table_without = {**table, "journal_datasync": False}
    assert parse_options(JournalOptions, table_without).sync_strategy == "never"


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
