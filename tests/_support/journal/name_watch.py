"""Names of real directories that a power cut may still take, with all that is in them.

The faulty disk takes the place of a store's files, and the store's directory itself is none of
them. Here the calls that make and sync directories are watched instead::

    with new_directories() as watch:
        ...                              # a store is opened, and confirms something
        assert watch.unsynced() == set()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock


class NewDirectories:
    """Directories that were made, and whose parents were not synced since."""

    def __init__(self) -> None:
        self._made: set[Path] = set()

    def unsynced(self) -> set[Path]:
        """Those that are there and may be gone after a power cut."""
        return {path for path in self._made if path.is_dir()}

    def made(self, path: Any, *_: Any, **__: Any) -> None:
        self._made.add(Path(path).resolve())

    def synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._made = {made for made in self._made if made.parent != path}


@contextmanager
def new_directories() -> Iterator[NewDirectories]:
    """Watch every ``os.mkdir`` and ``os.fsync`` (``pathlib`` and ``shutil`` call them, too)."""
    watch = NewDirectories()

    def after(call: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            tell(*args, **kwargs)
            return result

        return watched

    with (
        mock.patch("os.mkdir", after(os.mkdir, watch.made)),
        mock.patch("os.fsync", after(os.fsync, watch.synced)),
    ):
        yield watch
