"""The options of the journaled store, and what the journal is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.spi import ConfigError, StoreContext, parse_options
from tidegate_store_journaled import JournaledOptions
from tidegate_store_journaled._options import check_journal, journal_options
from tidegate_store_journaled.plugin import JournaledStoreFactory


def test_defaults_are_those_of_the_documents() -> None:
    options = JournaledOptions()
    assert (options.use_journal, options.use_quick_journal) == (True, False)
    assert (options.journal_log_files, options.journal_log_file_size) == (2, 20 << 20)
    assert options.checkpoint_interval == 6.0
    assert options.capacity_bytes == 40 << 20


def test_they_are_written_as_all_others() -> None:
    made = parse_options(
        JournaledOptions,
        {
            "journal_log_files": 5,
            "journal_log_file_size": "1mb",
            "checkpoint_interval": "250ms",
            "journal_archive_directory": "old",
            "url": "sqlite:///x.db",
        },
    )
    assert made.capacity_bytes == 5 << 20
    told = journal_options(made)
    assert (told.journal_min_files, told.journal_pool_files, told.file_length) == (5, 5, 1 << 20)
    assert (told.archive_data_logs, told.directory_archive) == (True, "old")
    assert not journal_options(JournaledOptions()).archive_data_logs


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (JournaledOptions(journal_directory=" "), "journal_directory"),
        (JournaledOptions(use_journal=False, use_quick_journal=True), "use_quick_journal"),
        (JournaledOptions(use_journal=False, checkpoint_interval=1), "checkpoint_interval"),
        (JournaledOptions(use_journal=False, journal_log_files=5), "journal_log_files"),
    ],
)
def test_what_cannot_work_together_is_refused(options: JournaledOptions, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_journal(options)
    assert caught.value.key == key


def test_files_without_life_are_put_away_as_soon_as_the_database_has_what_was_in_them() -> None:
    """Every 30 s only, publishes were refused for 28 s after everything had been consumed."""
    told = journal_options(JournaledOptions())
    assert (
        told.cleanup_interval == told.checkpoint_interval < JournaledOptions().checkpoint_interval
    )


def test_a_limit_that_an_empty_journal_could_be_above_is_refused(tmp_path: Path) -> None:
    least = 2 * 5 * (20 << 20)
    for limit in (0, least):
        context = StoreContext(tmp_path, "test", store_limit=limit)
        JournaledStoreFactory().create(context, JournaledOptions())
    context = StoreContext(tmp_path, "test", store_limit=least - 1)
    with pytest.raises(ConfigError, match=r"broker\.store_limit") as caught:
        JournaledStoreFactory().create(context, JournaledOptions())
    assert caught.value.key == "journal_log_file_size"


def test_no_secret_is_in_their_text() -> None:
    options = JournaledOptions(password="hunter2", url="postgresql://u:hunter2@host/db?x=hunter2")
    assert repr(options) == "JournaledOptions(host/db)"
