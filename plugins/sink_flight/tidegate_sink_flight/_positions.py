"""The named readers' positions: a small file, replaced as a whole and synced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from tidegate.spi import ConfigError, RequestError

FILE_NAME: Final = "readers.json"


class Position(msgspec.Struct):
    """One reader's position.

    Attributes:
        committed: it will never ask again for rows up to here.
        planned: how far it was allowed to go; at least *committed*.
        generation: goes up with each new query; older ones are refused.
    """

    committed: int
    planned: int
    generation: int = 0


class _File(msgspec.Struct):
    epoch: str
    readers: dict[str, Position]


class Positions:
    """The readers that the configuration names. Methods that change anything block on a sync."""

    def __init__(self, directory: Path, epoch: str) -> None:
        """Args: epoch: of the log; positions in another epoch do not apply."""
        self._path = directory / FILE_NAME
        self._epoch = epoch
        self._readers: dict[str, Position] = {}

    def load(self, names: list[str], first: int, last: int) -> list[str]:
        """Load the positions of *names*; new ones start at row *first*.

        Returns: what an operator should know, one line each.
        Raises: ConfigError when a position is beyond the log's *last* row; OSError.
        """
        told: list[str] = []
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            found = _File(self._epoch, {})
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{self._path}: is damaged ({error}); without it every reader begins with the oldest row that "
                "the log has: bring it back from a copy, or remove it",
                key="readers",
            ) from None
        if found.epoch != self._epoch:
            told.append(
                f"the store is another one (epoch {self._epoch}, was {found.epoch}): all readers begin anew"
            )
            found = _File(self._epoch, {})
        for name, position in found.readers.items():
            if name not in names:
                told.append(f"reader {name} is not configured any more, and is forgotten")
            elif position.committed > last:
                raise ConfigError(
                    f"{self._path}: reader {name} has committed row {position.committed}, and the log ends with "
                    f"{last}: the store is an older copy. New rows would be left out: remove the file, or bring "
                    "back the store that belongs to it",
                    key="readers",
                )
        self._readers = {
            name: found.readers.get(name) or Position(first - 1, first - 1) for name in names
        }
        for position in self._readers.values():
            position.planned = min(max(position.planned, position.committed), last)
        self._save(self._readers)
        return told

    def of(self, name: str) -> Position:
        """Raises: LookupError."""
        return self._readers[name]

    @property
    def common(self) -> int | None:
        """The rows that all readers have committed; None: there are no readers."""
        return min((item.committed for item in self._readers.values()), default=None)

    def opened(self, name: str) -> Position:
        """Start a new query of *name*. Raises: OSError."""
        old = self._readers[name]
        return self._put(name, Position(old.committed, old.planned, old.generation + 1))

    def planned(self, name: str, generation: int, rows_max: int, last: int) -> Position:
        """Set how far the next batch goes. Raises: RequestError (another query), OSError."""
        old = self._checked(name, generation)
        end = min(last, old.planned + rows_max) if rows_max else last
        if end <= old.planned:
            return old
        return self._put(name, Position(old.committed, end, generation))

    def committed(self, name: str, generation: int, through: int, last: int) -> Position:
        """Raises: RequestError (another query; a row that is not there yet), OSError."""
        old = self._checked(name, generation)
        if through > last:
            raise RequestError(f"row {through} is not there yet: the log ends with {last}")
        if through <= old.committed:
            return old
        return self._put(name, Position(through, max(old.planned, through), generation))

    def _checked(self, name: str, generation: int) -> Position:
        position = self._readers[name]
        if generation != position.generation:
            raise RequestError(
                f"another query reads as {name!r} since this one began; give each query a reader of its own"
            )
        return position

    def _put(self, name: str, position: Position) -> Position:
        """Write to disk first: a promise must be saved before it is made."""
        readers = self._readers | {name: position}
        self._save(readers)
        self._readers = readers
        return position

    def _save(self, readers: dict[str, Position]) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(_File(self._epoch, readers)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
