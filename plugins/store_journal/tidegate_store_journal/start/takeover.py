"""Following an owner that may only be paused: what it had begun to write must not reach our files.

Where it could still write, a copy takes over the name before anything of ours is written: its own bytes then go to
a file that no longer has a name. Files to be reused are deleted, and new ones get ids that it does not reach. Files
in directories of destinations are not copied: no start continues in one, and nothing refers to what follows the last
reference. All of this blocks.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

from tidegate_store_journal.bodies.folders import Folders
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import Storage, copy_range, sync_path
from tidegate_store_journal.start.replay import Replay

#: More files than an owner can make between two checks of its lock.
_IDS: Final = 1 << 10


def copy_metadata(directory: Path | None) -> None:
    """Call this before LMDB in *directory* is opened: it maps its file. Raises: OSError."""
    if directory is None or not (path := directory / "data.mdb").exists():
        return
    temporary = path.with_suffix(".tmp")
    shutil.copy(path, temporary)
    sync_path(temporary, os.O_RDONLY)
    os.replace(temporary, path)
    sync_path(directory)


def leave_behind(found: Replay) -> None:
    """Call this before anything is written, and after everything was read. Raises: OSError."""
    storage, bindings = found.storage, found.bindings
    if found.tail is not None:
        found.tail.close()
        _replace(storage, found.tail, found.tail_offset)
        found.tail.handle = storage.open(found.tail.name)
    for item in bindings.files[-1:]:
        item.file.close()
        _replace(storage, item.file, item.file.length)
    waiting = [name for name, _ in (*bindings.free, *bindings.leftovers)]
    for name in (*(file.name for file in found.spares), *found.pool, *waiting):
        storage.unlink(name)
    for folder, pool in found.elsewhere.pools.items():
        for name, _ in pool:
            Folders(storage).get(folder).unlink(name)
        pool.clear()
    for gone in (found.spares, found.pool, bindings.free, bindings.leftovers):
        gone.clear()
    found.next_file_id += _IDS
    bindings.next_file_id += _IDS
    storage.sync_directory()


def _replace(storage: Storage, file: DataFile, end: int) -> None:
    """Replace it with a copy of everything before *end*."""
    temporary = file.name + ".tmp"
    copy_range(storage, file.name, 0, end, temporary)
    with closing(storage.open(temporary)) as copy:
        copy.preallocate(file.length)
        copy.datasync()
    storage.rename(temporary, file.name)
    storage.sync_directory()
