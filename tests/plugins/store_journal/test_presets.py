"""Presets: what they set, what wins over them, and that none loses sight of another's journal."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from journal_kit import new_store, opened, pending, write
from numbered import add

from tidegate.spi import ConfigError, StoreContext, StoreIOError, format_size, parse_options
from tidegate_store_journal import JournalOptions
from tidegate_store_journal.checks import check
from tidegate_store_journal.presets import CHOICES, PRESETS, directory_of, is_default

DOCUMENT = Path(__file__).parents[3] / "docs" / "store-journal.md"


@pytest.mark.parametrize("preset", PRESETS)
def test_what_a_preset_sets_is_what_counts(preset: str) -> None:
    options = parse_options(JournalOptions, {"preset": preset})
    for key, value in PRESETS[preset].items():
        assert getattr(options, key) == value
    check(options)


def test_the_values_are_those_of_the_documents() -> None:
    assert parse_options(JournalOptions, {"preset": "artemis"}).file_length == 10 * 1024 * 1024
    assert parse_options(JournalOptions, {"preset": "amq"}).checkpoint_interval == 6.0
    assert parse_options(JournalOptions, {"preset": "kahadb"}).checkpoint_interval == 5.0
    flat = parse_options(JournalOptions, {"preset": "flatfile"})
    assert (flat.max_record_size, flat.filepool_limit, flat.filepool_cleanratio) == (
        1 << 20,
        100,
        0,
    )
    assert flat.per_destination == ("queue://>", "topic://>")


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_written_wins_even_when_it_is_the_ordinary_default(preset: str) -> None:
    written = {
        "directory": "journal",
        "journal_max_file_length": "32mb",
        "checkpoint_interval": "5s",
    }
    options = parse_options(JournalOptions, {"preset": preset, **written})
    assert options.directory == "journal"
    assert options.file_length == 32 << 20
    assert options.checkpoint_interval == 5.0


def test_the_other_name_of_the_file_length_wins_too() -> None:
    options = parse_options(JournalOptions, {"preset": "artemis", "journal_file_size": "1mb"})
    assert options.file_length == options.journal_max_file_length == 1 << 20


def test_no_preset_changes_nothing() -> None:
    assert parse_options(JournalOptions, {"preset": "none"}) == parse_options(JournalOptions, {})


def test_every_option_that_a_preset_sets_can_be_told_from_a_written_one() -> None:
    defaults = {field.name: field.default for field in fields(JournalOptions)}
    for values in PRESETS.values():
        for key, value in values.items():
            assert isinstance(value, bool) or is_default(defaults[key]), key


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(JournalOptions, {"preset": "kahadb2"})
    assert caught.value.key == "preset"
    with pytest.raises(ConfigError):
        check(JournalOptions(preset="x"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_record_size", "2mb"),
        ("max_record_size", "1mb"),
        ("filepool_limit", 5),
        ("filepool_cleanratio", 10),
        ("message_cleanup", True),
    ],
)
def test_options_of_the_layout_are_refused_without_it(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check(parse_options(JournalOptions, {key: value}))
    assert caught.value.key == key
    check(parse_options(JournalOptions, {key: value, "per_destination": ["queue://a.>"]}))


@pytest.mark.parametrize("item", ["orders", "queue://", "file://x", "queue://a.>.b"])
def test_a_filter_that_covers_nothing_is_refused(item: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(parse_options(JournalOptions, {"per_destination": [item]}))
    assert caught.value.key == "per_destination"


def test_the_name_of_the_gateway_is_part_of_the_directory(tmp_path: Path) -> None:
    context = StoreContext(tmp_path, "Joe Fred/..")
    assert directory_of(context, "a/{gateway}/b") == tmp_path / "a" / "Joe_Fred_.." / "b"
    assert directory_of(context, "/var/x") == Path("/var/x")


@pytest.mark.parametrize("first", CHOICES)
@pytest.mark.parametrize("second", CHOICES)
async def test_another_presets_journal_is_not_overlooked(
    tmp_path: Path, first: str, second: str
) -> None:
    store, _ = await opened(tmp_path, preset=first)
    await write(store, add(1))
    await store.close()
    if first == second:
        return
    with pytest.raises(StoreIOError, match="holds a journal") as caught:
        await opened(tmp_path, preset=second)
    hint = re.search(r'directory = "([^"]+)"', str(caught.value))
    assert hint is not None
    store, _ = await opened(tmp_path, preset=second, directory=hint[1])
    assert await pending(store) == [1]
    await store.close()
    # Whoever names another directory means it.
    store, _ = await opened(tmp_path, preset=second, directory="elsewhere")
    assert await pending(store) == []
    await store.close()


def test_a_store_is_made_without_touching_the_disk(tmp_path: Path) -> None:
    new_store(tmp_path, preset="amq")
    assert list(tmp_path.iterdir()) == []


def test_the_document_says_what_each_preset_sets() -> None:
    text = DOCUMENT.read_text()
    rows = {
        match[1]: [cell.strip() for cell in match[2].split("|")]
        for match in re.finditer(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    }
    for number, preset in enumerate(PRESETS):
        for key, value in PRESETS[preset].items():
            assert rows[key][number].strip("`") == in_words(key, value), (preset, key)


def in_words(key: str, value: object) -> str:
    if key in ("journal_max_file_length", "max_record_size"):
        assert isinstance(value, int)
        return format_size(value)
    if key.endswith("interval"):
        return f"{value:g}s"
    if isinstance(value, tuple):
        return "every destination"
    return str(value).lower() if isinstance(value, bool) else str(value)
