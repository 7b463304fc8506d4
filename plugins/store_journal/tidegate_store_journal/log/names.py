"""Maps the journal's own flat names to the file names and directories of the presets.

The engine knows one set of names (docs/journal-format.md section 1). A :class:`NamedStorage` keeps
those files where a preset's document has them: ``journal-0000000007.data`` is ``db-7.log`` for
KahaDB and ``journal/activemq-data-7.amq`` for Artemis. It *reads* every naming, so a journal goes on
under another preset, and every reader finds the files whatever made them: existing files keep their
names, only new ones get the new one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tidegate_store_journal.log.format import DATA_NAME, SERIES
from tidegate_store_journal.log.storage import (
    DirectoryFile,
    DirectoryStorage,
    File,
    make_directory,
    sync_path,
)

_OURS: Final = re.compile(r"(journal|bindings)-(\d{10})\.(data|free)(.*)")
_MARKER: Final = "index-store-state"


class Naming:
    """Where one document has its files; all paths are relative to ``[store] directory``.

    Attributes: metadata: directory of the metadata store. marker: the file that says that it may be
        trusted. folders: those of files, without the store's own.
    """

    def __init__(
        self,
        journal: tuple[str, str, str] = ("journal-", ".data", ".free"),
        bindings: tuple[str, str, str] = ("bindings-", ".data", ".free"),
        *,
        digits: int = 1,
        metadata: str = "metadata",
        marker: str = _MARKER,
    ) -> None:
        """*journal*, *bindings*: what precedes the id of a file, which has at least *digits*; and
        what follows that of a data file, and of a free one."""
        self._digits = digits
        self._places: dict[tuple[str, str], tuple[str, str]] = {}
        for series, (before, data, free) in zip(SERIES, (journal, bindings), strict=True):
            self._places[series, "free"] = before, free  # first: *data* may be nothing
            self._places[series, "data"] = before, data
        self.metadata = metadata
        self.marker = marker
        self.folders = {
            path.rpartition("/")[0] for path in (journal[0], bindings[0], marker) if "/" in path
        }

    def path_of(self, name: str) -> str:
        """The path of the file that the engine calls *name*."""
        match = _OURS.fullmatch(name)
        if match is not None:
            before, behind = self._places[match[1], match[3]]
            return f"{before}{int(match[2]):0{self._digits}d}{behind}{match[4]}"
        return self.marker + name[len(_MARKER) :] if name.startswith(_MARKER) else name

    def name_of(self, path: str) -> str | None:
        """The engine's name of the file at *path*; None when the path is not of this naming."""
        if path.startswith(self.marker):
            return _MARKER + path[len(self.marker) :]
        for (series, kind), (before, behind) in self._places.items():
            pattern = rf"{re.escape(before)}(\d+){re.escape(behind)}(|\..*)"
            match = re.fullmatch(pattern, path)
            if match is not None:
                name = f"{series}-{int(match[1]):010d}.{kind}{match[2]}"
                if path == self.path_of(name):
                    return name
        return None


#: The journal's own names first: they are the default.
NAMINGS: Final = {
    "": Naming(digits=10),
    "kahadb": Naming(("db-", ".log", ".log.free"), metadata="db.data"),
    "amq": Naming(
        ("journal/data-", "", ".free"),
        ("kr-store/state/bindings-", "", ".free"),
        metadata="kr-store/data",
        marker="kr-store/state/index-store-state",
    ),
    "artemis": Naming(
        ("journal/activemq-data-", ".amq", ".amq.free"),
        ("bindings/activemq-bindings-", ".bindings", ".bindings.free"),
    ),
    "flatfile": Naming(digits=10),
}
_FOLDERS: Final = sorted(set[str]().union(*(naming.folders for naming in NAMINGS.values())))


class NamedStorage(DirectoryStorage):
    """A directory whose files have the names and places of *naming*."""

    def __init__(
        self,
        directory: Path,
        naming: Naming | None = None,
        *,
        wrap: Callable[[str, DirectoryFile], File] | None = None,
        lease_seconds: float = 0.0,
    ) -> None:
        super().__init__(directory, wrap=wrap, lease_seconds=lease_seconds)
        self._naming = naming or NAMINGS[""]
        self._paths: dict[str, str] = {}  # paths of files found or made

    @property
    def metadata_directory(self) -> Path:
        """See :class:`Storage`. An existing one under another naming is kept."""
        own = self._directory / self._naming.metadata
        if not own.is_dir():
            for naming in NAMINGS.values():
                other = self._directory / naming.metadata
                if (other / "data.mdb").is_file():
                    return other
        return own

    def lock(self, owner: str) -> None:
        super().lock(owner)
        for folder in sorted(self._naming.folders):
            make_directory(self._directory / folder)

    def list(self) -> Sequence[str]:
        """See :class:`Storage`.

        Raises: OSError also when two files are the same data file under two namings.
        """
        names: list[str] = []
        paths: dict[str, str] = {}
        for path in self._walk():
            name = next(filter(None, (item.name_of(path) for item in NAMINGS.values())), None)
            if name is None:
                if "/" not in path:
                    names.append(path)
                continue
            other = paths.setdefault(name, path)
            if other != path:
                raise OSError(
                    errno.EEXIST,
                    f"{self._directory / other} and {self._directory / path} are the same file of the "
                    "journal under two names; move the one away that does not belong here",
                )
            names.append(name)
        self._paths = paths
        return names

    def _walk(self) -> Iterator[str]:
        yield from os.listdir(self._directory)
        for folder in _FOLDERS:
            if (self._directory / folder).is_dir():
                for name in os.listdir(self._directory / folder):
                    yield f"{folder}/{name}"

    def path_of(self, name: str) -> Path:
        return self._directory / (self._paths.get(name) or self._naming.path_of(name))

    def open_fd(self, name: str, *, create: bool = False) -> int:
        fd = super().open_fd(name, create=create)
        self._paths.setdefault(name, self._naming.path_of(name))
        return fd

    def rename(self, old: str, new: str) -> None:
        folder, slash, name = new.rpartition("/")
        base = Path(self._naming.path_of(name)).name
        super().rename(old, f"{folder}/{base}" if slash else new)
        self._paths.pop(old, None)
        if not slash:
            self._paths.setdefault(new, self._naming.path_of(new))

    def unlink(self, name: str) -> None:
        super().unlink(name)
        self._paths.pop(name, None)

    def sync_directory(self) -> None:
        super().sync_directory()
        for folder in _FOLDERS:
            if (self._directory / folder).is_dir():
                sync_path(self._directory / folder)


def preset_of(storage: NamedStorage) -> str:
    """The preset that named most data files in *storage*; "" for none.

    Raises: OSError.
    """
    names = [name for name in storage.list() if DATA_NAME.fullmatch(name)]
    paths = [str(storage.path_of(name).relative_to(storage.describe(""))) for name in names]
    counts = {
        key: sum(item.name_of(path) is not None for path in paths) for key, item in NAMINGS.items()
    }
    return max(counts, key=lambda key: counts[key])


def holds_journal(directory: Path) -> bool:
    """Tell whether *directory* has data files of any naming."""
    return directory.is_dir() and any(map(DATA_NAME.fullmatch, NamedStorage(directory).list()))
