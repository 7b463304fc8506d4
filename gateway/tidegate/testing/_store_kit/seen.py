"""What a store reports to operators: its files, why each is kept, and what else it is made of."""

from __future__ import annotations

from typing import Final

import pytest

from tidegate.spi import Discard, DiscardReason, StoreError, StoreFiles
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add


class StoreFilesKept(StoreFixtures):
    """What the store reports of its files."""

    async def test_it_says_of_each_file_what_keeps_it(self, box: StoreBox) -> None:
        """Does nothing for a store that does not list files."""
        await box.open(QUEUE, OTHER, add(1), add(2, 1, 2), add(3, 2))
        files = box.store.capabilities.files
        if files is None:
            return
        assert await _kept(files) == {1: {1, 2}, 2: {2, 3}}
        await box.write(
            Discard(2, (2, 3), DiscardReason.PURGED), Discard(1, (1,), DiscardReason.PURGED)
        )
        assert await _kept(files) == {1: {2}}
        assert await files.why_kept("no such file") is None
        await box.restart()
        files = box.store.capabilities.files
        assert files is not None
        if box.store.capabilities.durable:
            assert await _kept(files) == {1: {2}}


class StorePartsKept(StoreFixtures):
    """What the store reports of its parts."""

    async def test_it_says_what_it_is_made_of_while_it_is_open(self, box: StoreBox) -> None:
        """Does nothing for a store that does not list parts."""
        await box.open(QUEUE, add(1))
        offered = box.store.capabilities.parts
        if offered is None:
            return
        for parts in (await offered.store_parts(), await offered.store_parts()):
            assert parts
            assert len({(part.kind, part.name) for part in parts}) == len(parts)
            for part in parts:
                assert part.kind
                assert part.name
                assert (part.disk_bytes or 0) >= (part.reusable_bytes or 0) >= 0 or (
                    part.disk_bytes is None
                )
                assert min(part.rows or 0, part.dead_rows or 0) >= 0
        assert await box.sequences(1) == [1]
        await box.close()
        with pytest.raises(StoreError):
            await offered.store_parts()


#: By list, as the kit makes them.
_NAMES: Final = {item.pending_list: item.destination for item in (QUEUE, OTHER)}


async def _kept(files: StoreFiles) -> dict[int, set[int]]:
    """The messages that files are kept for, by list."""
    found: dict[int, set[int]] = {}
    listed = list(files.store_files())
    assert len({file.name for file in listed}) == len(listed)
    for file in listed:
        assert 0 <= file.live_bytes <= file.length
        holders = await files.why_kept(file.name)
        assert holders is not None
        kept = [holder for holder in holders if holder.pending_list]
        assert sum(holder.messages for holder in kept) <= file.references
        assert bool(kept) <= bool(file.live_bytes)
        for holder in kept:
            assert holder.messages == len(holder.sequences)
            assert (holder.kind, holder.destination) == ("queue", _NAMES[holder.pending_list])
            found.setdefault(holder.pending_list, set()).update(holder.sequences)
    return found
