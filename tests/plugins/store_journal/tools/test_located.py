"""Which journal a command is about, and what is said of places that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from journal_kit import KB, data_files, opened, write
from numbered import add

from tidegate.spi import ConfigError, ConfiguredStore
from tidegate_store_journal.log.names import NamedStorage
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.plugin import JournalStoreFactory
from tidegate_store_journal.tools.located import (
    data_names,
    directory_around,
    directory_of,
    find_store,
    require_journal,
)


class Host:
    """Of a host what is needed here: its configuration names *plugin*."""

    def __init__(self, plugin: str, directory: Path) -> None:
        self.plugin = plugin
        self.directory = directory

    def store(self, config: Path | None) -> ConfiguredStore:
        return ConfiguredStore(self.plugin, JournalStoreFactory(), JournalOptions(), self.directory)


def host_of(plugin: str, directory: Path) -> Any:
    return Host(plugin, directory)


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    store, _ = await opened(tmp_path, journal_max_file_length=128 * KB)
    await write(store, add(1))
    await store.close()
    return tmp_path / "journal"


def test_a_configuration_names_the_directory(journal: Path) -> None:
    host = host_of("journal", journal.parent)
    assert directory_of(find_store(host, Path("any.toml"), None)) == journal
    assert directory_of(find_store(host, None, journal)) == journal
    with pytest.raises(ConfigError, match="not both"):
        find_store(host, Path("any.toml"), journal)


def test_another_store_is_not_taken_for_a_journal(journal: Path) -> None:
    with pytest.raises(ConfigError, match=r"any\.toml has a store of the plugin 'jdbc'"):
        find_store(host_of("jdbc", journal.parent), Path("any.toml"), None)


def test_a_directory_alone_is_opened_with_the_size_that_its_files_have(journal: Path) -> None:
    store = find_store(host_of("jdbc", journal), None, journal)
    assert directory_of(store) == journal
    assert isinstance(store.options, JournalOptions)
    assert store.options.file_length == 128 * KB


def test_a_place_that_is_no_journal_is_said_to_be_none_with_a_hint(journal: Path) -> None:
    with pytest.raises(ConfigError, match=rf"not a journal: .*there is one in {journal}"):
        require_journal(journal.parent)
    (journal / "inner").mkdir()
    with pytest.raises(ConfigError, match="there is one in"):
        require_journal(journal / "inner")
    with pytest.raises(ConfigError, match=r"there is no directory .*--config.*--directory"):
        require_journal(journal / "nowhere")
    with pytest.raises(ConfigError, match="Not a directory"):
        data_names(NamedStorage(journal / "lock"))
    bare = journal / "inner" / "bare"
    bare.mkdir()
    with pytest.raises(ConfigError, match=r"no data files$"):
        require_journal(bare)


def test_a_newer_format_is_said_to_be_newer(journal: Path) -> None:
    require_journal(journal)
    path = data_files(journal.parent)[0]
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"version 99 of the journal's format.*a newer one"):
        require_journal(journal)


@pytest.mark.parametrize(("preset", "folder"), [("kahadb", ""), ("amq", "journal")])
async def test_the_names_of_a_preset_are_found_and_go_on(
    tmp_path: Path, preset: str, folder: str
) -> None:
    store, _ = await opened(tmp_path, preset=preset, directory="x")
    await write(store, add(1))
    await store.close()
    place = tmp_path / "x"
    require_journal(place)
    file = place / folder / ("db-1.log" if preset == "kahadb" else "data-1")
    assert file.is_file()
    assert directory_around(file) == place
    options = find_store(host_of("jdbc", place), None, place).options
    assert isinstance(options, JournalOptions)
    assert (options.preset, options.file_length) == (preset, 64 * KB)
    assert options.directory == str(place)
