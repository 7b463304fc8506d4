"""Opens and closes the store around an export or import; without pyarrow, the error that says so."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from tidegate.spi import ConfigError, ConfiguredStore, MessageStore, Progress, RecoveredState
from tidegate.spi.private_files import make_private_directory

_T = TypeVar("_T")


def export_store(store: ConfiguredStore, target: Path, progress: Progress) -> Mapping[str, int]:
    """Write all of *store* to the new directory *target*; blocks, and needs no event loop running.

    Returns: how many of each thing. What was written is removed if it cannot be finished.
    Raises: ConfigError (also when pyarrow is not installed, *target* holds something, or the store
        is not persistent, or was never made); StoreError, which StoreLockedError is when a gateway runs.
    """
    _require_persistent(store)
    _portable("_out").check_target(target)
    made = store.create(progress=progress)
    _require_contents(made)
    return asyncio.run(_with_store(made, lambda it, state: carry_out(it, state, target, progress)))


def import_store(store: ConfiguredStore, source: Path, progress: Progress) -> Mapping[str, int]:
    """Fill *store*, which must be empty, from *source*; blocks, and needs no event loop running.

    Returns: how many of each thing. Raises: as :func:`export_store`; if it fails in the middle the
    store holds a part, and must be removed before another attempt.
    """
    _require_persistent(store)
    _portable("_in").read_source(source)  # before anything is made
    make_private_directory(store.data_directory)  # as a gateway does: a store finds it there
    made = store.create(progress=progress)
    return asyncio.run(_with_store(made, lambda it, state: carry_in(it, state, source, progress)))


def _silent(_what: str, _done: int, _total: int) -> None: ...


async def carry_out(
    store: MessageStore, state: RecoveredState, target: Path, progress: Progress = _silent
) -> Mapping[str, int]:
    """Like :func:`export_store`, for an open store that nobody else uses meanwhile.

    *state*: what its ``open`` returned. It must have been made with ``keep_acknowledged``.
    """
    return await _portable("_out").carry_out(store, state, target, progress)


async def carry_in(
    store: MessageStore, state: RecoveredState, source: Path, progress: Progress = _silent
) -> Mapping[str, int]:
    """Like :func:`import_store`, for an open store that nobody else uses meanwhile."""
    return await _portable("_in").carry_in(store, state, source, progress)


async def _with_store(
    made: MessageStore, work: Callable[[MessageStore, RecoveredState], Coroutine[Any, Any, _T]]
) -> _T:
    try:
        return await work(made, await made.open())
    finally:
        await made.close()


def _require_persistent(store: ConfiguredStore) -> None:
    if not store.persistent:
        raise ConfigError(
            "must be true: the gateway keeps nothing on disk, so there is nothing to "
            "export or import",
            key="broker.persistent",
        )


def _require_contents(made: MessageStore) -> None:
    """A store that would only be made now holds nothing: the path is not the intended one."""
    directories = made.capabilities.directories
    if directories and not any(directory.exists() for directory in directories):
        raise ConfigError(
            f"there is no store in {directories[0]}: the directory does not exist; "
            "check broker.data_directory",
            key="broker.data_directory",
        )


def _portable(module: str) -> Any:
    """One of our modules that need pyarrow. Raises: ConfigError that says what to install."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "the portable format needs pyarrow: pip install 'tidegate[portable]'"
        ) from error
    return cast("Any", importlib.import_module(f"tidegate.portable.{module}"))
