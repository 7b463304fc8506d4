"""Policy *quarantine*: damaged stretches are copied aside and made void, so that the rest is served.

A *void* batch (docs/journal-format.md section 9) stands where the damage begins and says where the
journal goes on; the journal is whole again for everybody who reads it later. Everything here blocks,
while nothing else uses the store.

Crash story: the copies are synced before anything is made void. A crash in between leaves a stretch
that is still damaged, and the next start does it again; a copy that is there already is never written
over.
"""

from __future__ import annotations

from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, read_data_file, using
from tidegate_store_journal.log.format import END_MARK, FormatError
from tidegate_store_journal.log.storage import Storage, copy_range, fresh_name
from tidegate_store_journal.log.walk import BATCH_BYTES_MIN
from tidegate_store_journal.start.damage import Damage, survey
from tidegate_store_journal.start.lossreport import LossReport


class Quarantine:
    """What was taken out of a journal at this start.

    Attributes:
        damages: the stretches that were made void.
        gone: ids of data files that were moved aside whole.
    """

    def __init__(self, storage: Storage, report: LossReport) -> None:
        self._storage = storage
        self._report = report
        self.damages: list[Damage] = []
        self.gone: set[int] = set()

    def run(self, known_batch: int) -> bool:
        """Look for damage everywhere and take it out. Returns: something was found.

        Args: known_batch: see ``_damage.survey``. Raises: OSError.
        """
        files, unreadable = self._files()
        for name, error in unreadable:
            self._move_aside(name, str(error))
        damages, empty = survey(files, known_batch)
        for damage in damages:
            self._keep_copy(damage)
        if damages:
            self._storage.sync_directory()
        self._report.write()
        for damage in damages:
            self._make_void(damage)
        self.damages += damages
        newest = max((file.file_id for file in files), default=0)
        # The newest file may only be torn.
        broken = [file for file in empty if file.file_id != newest]
        for file in broken:
            self._move_aside(file.name, "no batch in it is whole")
        self._report.write()
        return bool(unreadable or damages or broken)

    def look(self, known_batch: int) -> list[Damage]:
        """Only look. Raises: OSError."""
        return survey(self._files()[0], known_batch)[0]

    def _files(self) -> tuple[list[DataFile], list[tuple[str, FormatError]]]:
        """All data files, and the names of those that have no whole header, with why."""
        files: list[DataFile] = []
        unreadable: list[tuple[str, FormatError]] = []
        for name in sorted(filter(_format.DATA_NAME.fullmatch, self._storage.list())):
            try:
                files.append(read_data_file(self._storage, name))
            except FormatError as error:
                unreadable.append((name, error))
        return files, unreadable

    def _move_aside(self, name: str, problem: str) -> None:
        target = fresh_name(self._storage, f"{name}.damaged")
        self._storage.rename(name, target)
        self._storage.sync_directory()
        self.gone.add(_format.file_id_of(name))
        self._report.add_note(
            f"{self._storage.describe(name)}: {problem}, so nothing in it can be read. The whole "
            f"file is now {target}."
        )

    def _keep_copy(self, damage: Damage) -> None:
        name = damage.file.name
        target = f"{name}.{damage.begin}.damaged"
        self._report.add_damage(damage, target)
        if target in self._storage.list():
            return  # of a start that was cut off: what is in the file now may be half replaced
        temporary = f"{target}.tmp"
        copy_range(self._storage, name, damage.begin, damage.end, temporary)
        self._storage.rename(temporary, target)

    def _make_void(self, damage: Damage) -> None:
        file = damage.file
        begin, behind = damage.begin, damage.begin + BATCH_BYTES_MIN
        # Where the end is not known, the file ends here: the journal goes on in another one.
        until = damage.end if damage.is_end_known else behind
        payload = _format.encode_record(_format.VOID, b"", sequence=until)
        header = _format.encode_batch_header(
            file.seed,
            payload,
            damage.last_batch,
            damage.first_batch - 1,
            damage.last_sequence,
            damage.last_ack,
            damage.last_list,
            1,
        )
        data = header + payload
        if file.reused and not damage.is_end_known:
            data += END_MARK[: file.length - behind]
        with using(file) as handle:
            handle.pwritev([data], begin)
            handle.datasync()
