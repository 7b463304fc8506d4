"""File names and directories of the presets, behind the journal's own flat names.

The engine knows one set of names (docs/journal-format.md section 1). A :class:`NamedStorage` keeps
those files where a preset's document has them: ``journal-0000000007.data`` is ``db-7.log`` for
KahaDB and ``journal/activemq-data-7.amq`` for Artemis. It *reads* every naming, so a journal goes on
under another preset, and every reader finds the files whatever made them: files keep the name they
have, only new ones get the new one.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_store_journal.log.format import DATA_NAME, JOURNAL, SERIES
from tidegate_store_journal.log.storage import (
    DirectoryFile,
    DirectoryStorage,
    File,
    make_directory,
    sync_path,
)

_OURS: Final = re.compile(r"(journal|bindings)-(\d{10})\.(data|free)(.*)")
_MARKER: Final = "index-store-state"


@dataclass(frozen=True, slots=True)
class Naming:
    """Where one document has its files; all paths are relative to ``[store] directory``.

    Attributes:
        folder: directory of the data files, "" for the store's own.
        prefix, suffix: a data file is called *prefix*, its id, *suffix*.
        digits: the id has at least this many.
        bindings: folder, prefix and suffix of the files of the bindings journal.
        metadata: directory of the metadata store.
        marker: the file that says that the metadata store may be trusted.
    """

    folder: str = ""
    prefix: str = "journal-"
    suffix: str = ".data"
    digits: int = 10
    bindings: tuple[str, str, str] = ("", "bindings-", ".data")
    metadata: str = "metadata"
    marker: str = _MARKER

    def path_of(self, name: str) -> str:
        """Where the file that the engine calls *name* lies."""
        match = _OURS.fullmatch(name)
        if match is not None:
            return self._path_of(match[1], int(match[2]), match[3], match[4])
        if name.startswith(_MARKER):
            return self.marker + name[len(_MARKER) :]
        return name

    def base_name_of(self, name: str) -> str:
        """The last part of :meth:`path_of`."""
        return self.path_of(name).rpartition("/")[2]

    def _place_of(self, series: str) -> tuple[str, str, str]:
        """Folder, prefix and suffix of a series of data files."""
        return (self.folder, self.prefix, self.suffix) if series == JOURNAL else self.bindings

    def _path_of(self, series: str, file_id: int, kind: str, rest: str) -> str:
        folder, prefix, suffix = self._place_of(series)
        number = f"{file_id:0{self.digits}d}"
        if suffix == ".data":
            name = f"{prefix}{number}.{kind}{rest}"
        else:
            kept = "" if kind == "data" else f".{kind}"
            name = f"{prefix}{number}{suffix}{kept}{rest}"
        return f"{folder}/{name}" if folder else name

    def name_of(self, path: str) -> str | None:
        """The engine's name of the file at *path*; None when the path is not of this naming."""
        if path.startswith(self.marker):
            return _MARKER + path[len(self.marker) :]
        for series in SERIES:
            folder, prefix, suffix = self._place_of(series)
            ending = re.escape(suffix) + r"(?:\.(free))?((?:\..*)?)"
            if suffix == ".data":
                ending = r"\.(data|free)(.*)"
            start = f"{folder}/{prefix}" if folder else prefix
            match = re.fullmatch(re.escape(start) + r"(\d+)" + ending, path)
            if match is not None:
                file_id, kind, rest = int(match[1]), match[2] or "data", match[3]
                if path == self._path_of(series, file_id, kind, rest):
                    return f"{series}-{file_id:010d}.{kind}{rest}"
        return None

    def folders(self) -> set[str]:
        """Directories of data files and bindings, without the store's own."""
        return {self.folder, self.bindings[0], self.marker.rpartition("/")[0]} - {""}


#: The journal's own names first: they are used when nothing else is asked for.
NAMINGS: Final = {
    "": Naming(),
    "kahadb": Naming(prefix="db-", suffix=".log", digits=1, metadata="db.data"),
    "amq": Naming(
        folder="journal",
        prefix="data-",
        suffix="",
        digits=1,
        bindings=("kr-store/state", "bindings-", ""),
        metadata="kr-store/data",
        marker="kr-store/state/index-store-state",
    ),
    "artemis": Naming(
        folder="journal",
        prefix="activemq-data-",
        suffix=".amq",
        digits=1,
        bindings=("bindings", "activemq-bindings-", ".bindings"),
    ),
    "flatfile": Naming(),
}


class NamedStorage(DirectoryStorage):
    """A directory in which the files have the names and places of *naming*."""

    def __init__(
        self,
        directory: Path,
        naming: Naming | None = None,
        *,
        wrap: Callable[[str, DirectoryFile], File] | None = None,
    ) -> None:
        super().__init__(directory, wrap=wrap)
        self._naming = naming or NAMINGS[""]
        self._paths: dict[str, str] = {}  # where the files are that were found or made

    @property
    def metadata_directory(self) -> Path:
        """See :class:`Storage`. One that is there under another naming goes on."""
        own = self._directory / self._naming.metadata
        if not own.is_dir():
            for naming in NAMINGS.values():
                other = self._directory / naming.metadata
                if (other / "data.mdb").is_file():
                    return other
        return own

    def lock(self, owner: str) -> None:
        super().lock(owner)
        for folder in sorted(self._naming.folders()):
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
        for folder in sorted(self._folders()):
            for name in os.listdir(self._directory / folder):
                yield f"{folder}/{name}"

    def _folders(self) -> set[str]:
        """Directories besides our own that may hold files of the journal and are there."""
        known = {folder for naming in NAMINGS.values() for folder in naming.folders()}
        return {folder for folder in known if (self._directory / folder).is_dir()}

    def path_of(self, name: str) -> Path:
        return self._directory / (self._paths.get(name) or self._naming.path_of(name))

    def open_fd(self, name: str, *, create: bool = False) -> int:
        fd = super().open_fd(name, create=create)
        self._paths.setdefault(name, self._naming.path_of(name))
        return fd

    def rename(self, old: str, new: str) -> None:
        folder, slash, name = new.rpartition("/")
        super().rename(old, f"{folder}/{self._naming.base_name_of(name)}" if slash else new)
        self._paths.pop(old, None)
        if not slash:
            self._paths.setdefault(new, self._naming.path_of(new))

    def unlink(self, name: str) -> None:
        super().unlink(name)
        self._paths.pop(name, None)

    def sync_directory(self) -> None:
        super().sync_directory()
        for folder in sorted(self._folders()):
            sync_path(self._directory / folder)


def preset_of(storage: NamedStorage) -> str:
    """The preset that named most data files in *storage*; "" when it was none, or there are none.

    Raises: OSError.
    """
    counts = dict.fromkeys(NAMINGS, 0)
    for name in storage.list():
        match = _OURS.fullmatch(name)
        if match is not None and (match[1], match[3]) == (JOURNAL, "data"):
            path = str(storage.path_of(name).relative_to(storage.describe("")))
            counts[next(key for key, item in NAMINGS.items() if item.name_of(path))] += 1
    return max(counts, key=lambda key: counts[key])


def holds_journal(directory: Path) -> bool:
    """Tell whether there are data files of any naming in *directory*."""
    if not directory.is_dir():
        return False
    names = NamedStorage(directory).list()
    return any(DATA_NAME.fullmatch(name) for name in names)
