"""Finding the journal that a command is about, and reporting what is wrong with a place without one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from tidegate.spi import CommandHost, ConfigError, ConfiguredStore, StoreContext
from tidegate.spi.private_files import open_regular
from tidegate_store_journal import presets as _presets
from tidegate_store_journal.log.format import (
    DATA_NAME,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FORMAT_VERSION,
)
from tidegate_store_journal.log.names import NamedStorage, holds_journal, preset_of
from tidegate_store_journal.options import JournalOptions

PLUGIN: Final = "journal"


def data_names(storage: NamedStorage) -> list[str]:
    """The engine's names of the data files in *storage*, in order of their ids.

    Whatever they are called on disk: see ``storage.describe``. Raises: ConfigError.
    """
    directory = storage.describe("")
    try:
        names = storage.list()
    except FileNotFoundError:
        raise ConfigError(
            f"there is no directory {directory}: name the gateway's configuration with --config, "
            "or the journal itself with --directory"
        ) from None
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror or error}") from error
    return sorted(filter(DATA_NAME.fullmatch, names))


def find_store(
    host: CommandHost, config: Path | None, directory: Path | None, *, is_there: bool = True
) -> ConfiguredStore:
    """The journal store that *config* or *directory* names; at most one of them.

    Raises: ConfigError when both are given, or the configuration has another store; and,
        with *is_there*, for a place without a journal, or with one of a newer program.
    """
    if directory is not None:
        if config is not None:
            raise ConfigError("give --config or --directory, not both")
        store = _store_in(directory.absolute())
    else:
        store = host.store(config)
        if store.plugin != PLUGIN:
            where = str(config) if config else "the default configuration"
            raise ConfigError(
                f"{where} has a store of the plugin {store.plugin!r}; `tidegate journal` is about "
                "the journal (for export and import of any store: `tidegate store`)",
                key="store.plugin",
            )
    if is_there:
        require_journal(directory_of(store))
    return store


def _options_of(store: ConfiguredStore) -> JournalOptions:
    assert isinstance(store.options, JournalOptions)
    return store.options


def directory_of(store: ConfiguredStore) -> Path:
    """Where the journal of *store* is, or would be."""
    context = StoreContext(store.data_directory, store.gateway_name)
    return _presets.directory_of(context, _options_of(store).directory)


def large_directory_of(store: ConfiguredStore) -> Path:
    """Where the large bodies of *store* are, or would be."""
    return directory_of(store) / _options_of(store).large_messages_directory


def require_journal(directory: Path) -> None:
    """Raises: ConfigError for a place without a journal, or with one of a newer program."""
    storage = NamedStorage(directory)
    names = data_names(storage)
    if not names:
        inner = [path for path in (directory / "journal", directory.parent) if holds_journal(path)]
        hint = f"; there is one in {inner[0]}" if inner else ""
        raise ConfigError(f"{directory} is not a journal: it has no data files{hint}")
    for name in names:
        path = storage.describe(name)
        try:
            with os.fdopen(open_regular(Path(path), os.O_RDONLY), "rb") as file:
                head = file.read(FILE_HEADER_BYTES)
        except OSError:
            continue  # reading all of it will show what is wrong
        version = int.from_bytes(head[8:10], "little")
        if head[:8] == FILE_MAGIC and version > FORMAT_VERSION:
            raise ConfigError(
                f"{path} has version {version} of the journal's format, and this "
                f"program reads up to {FORMAT_VERSION}: use the tidegate that wrote it, or "
                "a newer one"
            )


def directory_around(file: Path) -> Path:
    """The directory of the journal that has the data file *file*: the file's own, or one above.

    Two presets keep data files in a separate directory, ``journal``.
    """
    inner = file.parent
    return inner.parent if not holds_journal(inner) and holds_journal(inner.parent) else inner


def _store_in(directory: Path) -> ConfiguredStore:
    """The journal in *directory*, with the size and names of its data files."""
    from tidegate_store_journal.plugin import JournalStoreFactory

    storage = NamedStorage(directory)
    names = data_names(storage) if directory.is_dir() else []
    lengths = [Path(storage.describe(name)).stat().st_size for name in names]
    found: dict[str, Any] = {}
    if lengths:
        found["preset"] = preset_of(storage) or _presets.NO_PRESET
        found["journal_max_file_length"] = max(set(lengths), key=lengths.count)
    options = JournalOptions(directory=str(directory), **found)
    return ConfiguredStore(
        PLUGIN, JournalStoreFactory(), options, directory.parent, "tidegate journal"
    )
