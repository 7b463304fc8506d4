"""The store, as operators see it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

from tidegate.broker.operate.authorized import Authorized
from tidegate.broker.operate.paging import Key, in_steps, page
from tidegate.broker.operate.seen.connections_operated import is_in
from tidegate.spi import Identity, RequestError, StoreError, StoreFile, StoreFiles, StorePart
from tidegate.spi.operate import (
    ExplainFile,
    FileDetails,
    FilePage,
    FileSort,
    ListFiles,
    Room,
    ShowStore,
    StoreDetails,
)

#: How long a store may take to list its parts, in seconds: it may be away, and the rest is known.
PARTS_S: Final = 2.0
#: Fields of capabilities that are not abilities.
_FACTS: Final = frozenset({"durable", "directories", "measures_room"})


class StoreSeen(Authorized):
    """The part of :class:`tidegate.spi.operate.Operator` about the store."""

    async def show_store(self, who: Identity, request: ShowStore) -> StoreDetails:
        """See Operator."""
        self._authorize(who)
        core = self._core
        capabilities, found = core.store.capabilities, core.store.statistics()
        problem, acknowledged = "", None
        try:
            core.writer.check_writable()
        except StoreError as error:
            problem = str(error)
        if core.acknowledged_log.is_read:
            held = core.acknowledged_log.rows.log_statistics().held_bytes
            acknowledged = Room(held, core.config.acknowledged_limit)
        offers = [
            field.name
            for field in dataclasses.fields(capabilities)
            if field.name not in _FACTS and getattr(capabilities, field.name) is not None
        ]
        return StoreDetails(
            core.store_id,
            capabilities.durable,
            found.writable,
            problem,
            found.pending_messages,
            found.disk_bytes,
            found.reusable_bytes,
            found.claimed_bytes,
            Room(found.used_bytes, core.config.store_limit),
            acknowledged,
            core.disk.free if core.disk.free >= 0 else None,
            tuple(offers),
            tuple(map(str, capabilities.directories)),
            *await self._parts(),
        )

    async def _parts(self) -> tuple[tuple[StorePart, ...], str]:
        """The store's parts, and, if it cannot list them, why."""
        offered = self._core.store.capabilities.parts
        if offered is None:
            return (), ""
        try:
            async with asyncio.timeout(PARTS_S):
                return tuple(await offered.store_parts()), ""
        except TimeoutError:
            return (), f"its database has not answered within {PARTS_S:g} s"
        except StoreError as error:
            return (), str(error)

    async def list_files(self, who: Identity, request: ListFiles) -> FilePage:
        """See Operator."""
        self._authorize(who)
        match = request.match.casefold()
        numbered = await in_steps(enumerate(self._files().store_files()), lambda entry: entry)

        def key(entry: tuple[int, StoreFile]) -> Key | None:
            number, file = entry
            if not is_in(match, (file.name, file.state)):
                return None
            share = file.live_bytes * 1_000_000 // max(1, file.length)
            return (share if request.sort is FileSort.SPARSE else number), file.name

        shown, following = await page(numbered, key, request.after, request.limit)
        return FilePage(tuple(file for _, file in shown), following)

    async def explain_file(self, who: Identity, request: ExplainFile) -> FileDetails:
        """See Operator."""
        self._authorize(who)
        files = self._files()
        found = await in_steps(
            files.store_files(), lambda file: file if file.name == request.file else None
        )
        holders = await files.why_kept(request.file) if found else None
        if holders is None:
            raise RequestError(f"the store has no file {request.file!r}")
        most = sorted(holders, key=lambda holder: -holder.live_bytes)
        return FileDetails(found[0], tuple(most))

    def _files(self) -> StoreFiles:
        found = self._core.store.capabilities.files
        if found is None:
            raise RequestError("this store does not list its files")
        return found
