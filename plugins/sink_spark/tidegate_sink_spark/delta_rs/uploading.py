"""Puts staged files into a table on an object store.

They are sent as they are, in pieces, through delta-rs: with the options, keys and retries of its commits. As
in a local table, each gets a name that is new; what a killed job has sent is in no commit, and VACUUM removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tidegate_sink_spark.job.table import FurtherColumns
from tidegate_sink_spark.placing.files import PlacedFile, Placing

#: Read at once; delta-rs makes parts of at least 5 MB of them.
_PIECE_BYTES: Final = 4 << 20


class Uploading(Placing):
    """Places files on an object store. Args: files: delta-rs's way to the table's objects; scratch: a
    directory of the job's own, for what is on its way.
    """

    def __init__(
        self,
        files: Any,
        scratch: Path,
        partition_by: tuple[str, ...],
        further: FurtherColumns = (),
    ) -> None:
        super().__init__(scratch, partition_by, further)
        self._files = files

    def place(self, path: Path, behind: int | None) -> list[PlacedFile]:
        """See Placing; in the table's store afterwards, and durable."""
        placed = super().place(path, behind)
        try:
            for file in placed:
                self._send(file.name)
        except BaseException:
            self.take_back(placed)
            raise
        finally:
            for file in placed:
                (self._table / file.name).unlink(missing_ok=True)
        return placed

    def _put(self, path: Path, target: Path) -> None:
        target.symlink_to(path)

    def _send(self, name: str) -> None:
        stream = self._files.open_output_stream(name, None)
        with (self._table / name).open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                stream.write(piece)
        stream.close()  # an object is there when this returns, and not before

    def sync(self, placed: Iterable[PlacedFile]) -> None:
        """See Placing: what the store accepted is durable."""

    def take_back(self, placed: Iterable[PlacedFile]) -> None:
        """See Placing."""
        for file in placed:
            (self._table / file.name).unlink(missing_ok=True)
            with suppress(OSError):
                self._files.delete_file(file.name)
