"""Export: everything that a store offers through the contract, into a directory."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate import __version__
from tidegate.portable import _large, _tables
from tidegate.portable._columns import encode_row
from tidegate.portable._manifest import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    Manifest,
    table_facts,
    write_manifest,
)
from tidegate.portable._merge import LogSorter, merged
from tidegate.portable._tables import SCHEMAS, TableWriter, table_path
from tidegate.spi import (
    Branch,
    ConfigError,
    LogStatistics,
    MessageStore,
    Progress,
    RecoveredState,
    store_error,
)
from tidegate.spi.private_files import make_private_directory

#: Rows of the acknowledged log read at once.
_LOG_PAGE: Final = 1000
_LOG_PAGE_BYTES: Final = 8 << 20
#: Fields of what opening a store returns; the rest must be empty. The report is about the opening.
_CARRIED: Final = frozenset(
    {
        *("store_id", "last_sequence", "last_pending_list", "report", "pending"),
        *("destinations", "subscriptions", "sessions", "inflight", "retained"),
    }
)
#: Progress is reported once per this many messages.
_TELL_EVERY: Final = 1000


def check_target(target: Path) -> None:
    """Raises: ConfigError when something is there already."""
    try:
        taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror or error}") from error
    if taken:
        raise ConfigError(f"{target} already exists; name a directory that does not exist")


async def carry_out(
    store: MessageStore, state: RecoveredState, target: Path, progress: Progress
) -> Mapping[str, int]:
    """See :func:`tidegate.portable.carry_out`."""
    with _made(target):
        return await _Export(store, state, target, progress).run()


@contextlib.contextmanager
def _made(target: Path) -> Generator[None]:
    """Make the directory; when the export fails, leave nothing behind."""
    check_target(target)
    was_there = target.exists()
    try:
        make_private_directory(target)
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            for path in [*target.glob("*.parquet"), *target.glob("sorting-*.tmp")]:
                path.unlink()
            shutil.rmtree(target / _large.DIRECTORY, ignore_errors=True)
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            if not was_there:
                target.rmdir()
        if isinstance(error, OSError):
            raise store_error(f"cannot write the export to {target}", error) from error
        raise


def _require_known(state: RecoveredState) -> None:
    """Refuse what a newer contract returns and this format has no place for, rather than lose it."""
    for field in dataclasses.fields(state):
        if field.name not in _CARRIED and getattr(state, field.name):
            raise ConfigError(
                f"the store holds {field.name.replace('_', ' ')}, which the portable "
                "format cannot carry; complete them first (see the store's document)"
            )


class _Export:
    def __init__(
        self, store: MessageStore, state: RecoveredState, target: Path, progress: Progress
    ) -> None:
        self._store = store
        self._state = state
        self._target = target
        self._progress = progress
        self._rows: dict[str, int] = {}
        self._branches: Sequence[Branch] = ()

    async def run(self) -> Mapping[str, int]:
        state = self._state
        _require_known(state)
        branches = self._store.capabilities.branches
        self._branches = () if branches is None else await branches.recovered_branches()
        self._write(_tables.DESTINATIONS, state.destinations)
        self._write(_tables.SUBSCRIPTIONS, state.subscriptions)
        self._write(_tables.SESSIONS, state.sessions)
        self._write(_tables.INFLIGHT, state.inflight)
        self._write(_tables.RETAINED, state.retained)
        self._write(_tables.BRANCHES, self._branches)
        duplicate_ids = self._store.capabilities.duplicate_ids
        ids = () if duplicate_ids is None else await duplicate_ids.recovered_duplicate_ids()
        self._write(_tables.DUPLICATE_IDS, ids)
        sorter = LogSorter(self._target)
        try:
            await self._write_log(sorter)
            references = await self._write_messages(sorter)
        finally:
            sorter.remove()
        manifest = Manifest(
            FORMAT_NAME,
            FORMAT_VERSION,
            __version__,
            time.time_ns() // 1000,
            state.store_id,
            state.last_sequence,
            state.last_pending_list,
            {
                table: table_facts(table_path(self._target, table), self._rows[table])
                for table in SCHEMAS
            },
        )
        write_manifest(self._target, manifest)
        rows = {table: self._rows[table] for table in SCHEMAS}
        return rows | {"pending_references": references}

    def _open(self, table: str) -> TableWriter:
        return TableWriter(table_path(self._target, table), SCHEMAS[table])

    def _write(self, table: str, values: Sequence[msgspec.Struct]) -> None:
        with self._open(table) as writer:
            for value in values:
                writer.add(encode_row(value))
        self._rows[table] = writer.rows

    async def _write_log(self, sorter: LogSorter) -> None:
        columns: list[str] = SCHEMAS[_tables.ACKNOWLEDGED].names
        with self._open(_tables.ACKNOWLEDGED) as writer:
            log = self._store.capabilities.acknowledged_log
            statistics = LogStatistics(1, 0, 0, 0) if log is None else log.log_statistics()
            first = after = statistics.first - 1
            last = statistics.last
            while log is not None and after < last:
                page = await log.acknowledged(after, _LOG_PAGE, _LOG_PAGE_BYTES)
                if not page.rows:
                    break
                for row in page.rows:
                    sorter.add(row)
                    values = {name: getattr(row, name) for name in columns}
                    writer.add(values | {"outcome": row.outcome.word})
                after = page.rows[-1].ack_sequence
                self._progress("acknowledged rows", after - first, last - first)
        self._rows[_tables.ACKNOWLEDGED] = writer.rows

    async def _write_messages(self, sorter: LogSorter) -> int:
        state = self._state
        lists = {item.pending_list for item in state.destinations if item.pending_list}
        lists |= {item.pending_list for item in state.subscriptions}
        lists |= {item.pending_list for item in self._branches if item.pending_list}
        lists |= set(state.pending)
        # A list known to be empty is not read; one that the store did not count is.
        empty = {number for number, count in state.pending.items() if not count.messages}
        total = self._store.statistics().pending_messages
        references = 0
        with self._open(_tables.MESSAGES) as writer:
            async for found in merged(self._store, sorted(lists - empty), sorter.rows()):
                row: dict[str, Any] = encode_row(found.message)
                row["sequence"] = found.sequence
                body = _large.handle_of(found.message)
                if body is not None:
                    path = _large.body_path(self._target, found.sequence)
                    await _large.save(_large.place_of(self._store), body, path)
                row["pending"] = [
                    {"pending_list": number, "delivery_count": count}
                    for number, count in found.pending
                ]
                row["acknowledged"] = found.acknowledged
                references += len(found.pending)
                writer.add(row)
                if writer.rows % _TELL_EVERY == 0:
                    self._progress("messages", min(writer.rows, total), total)
        self._progress("messages", total, total)
        self._rows[_tables.MESSAGES] = writer.rows
        return references
