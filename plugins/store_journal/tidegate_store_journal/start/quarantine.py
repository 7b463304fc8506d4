"""Policy *quarantine*: damaged stretches are copied aside and replaced, so that the rest is served.

What was there becomes *void* batches (docs/journal-format.md section 9), and the journal is whole
again for everybody who reads it later. Everything here blocks, while nothing else uses the store.

Crash story: the copies are synced before anything is replaced. A crash amid the replacing leaves a
stretch that is still damaged, and the next start does it again; a copy that is there already is never
written over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.format import END_MARK, FILE_HEADER_BYTES, FormatError
from tidegate_store_journal.log.storage import Storage, fresh_name
from tidegate_store_journal.start.damage import BATCH_BYTES_MIN, Damage, readable_in, survey
from tidegate_store_journal.start.lossreport import LossReport

_COPY_BYTES: Final = 4 << 20
#: Longest void batch: its zeros are in memory while their CRC is computed.
_VOID_BYTES_MAX: Final = 64 << 20


class Quarantine:
    """What was taken out of a journal at this start.

    Attributes:
        damages: the stretches that were replaced.
        gone: ids of data files that were moved aside whole.
    """

    def __init__(self, storage: Storage, report: LossReport) -> None:
        self._storage = storage
        self._report = report
        self.damages: list[Damage] = []
        self.gone: set[int] = set()

    def run(self, known_batch: int) -> bool:
        """Look for damage everywhere and take it out. Returns: something was found.

        Args: known_batch: see ``_damage.survey``. Raises: OSError, CorruptRecordError.
        """
        files, headers_found = self._open_files()
        try:
            found = survey(files, known_batch)
            for damage in found.damages:
                self._copy_stretch(damage)
            if found.damages:
                self._storage.sync_directory()
            for damage in found.damages:
                self._report.add_damage(damage, self._copy_name(damage))
            self._report.write()
            for damage in found.damages:
                self._replace(damage)
            self.damages += found.damages
            is_chain_broken = bool(found.damages) or headers_found
            for file in found.empty:
                is_chain_broken |= self._move_unreadable(file, files)
        finally:
            for file in files:
                if file.handle is not None:
                    file.handle.close()
                    file.handle = None
        self._report.write()
        return is_chain_broken

    def look(self, known_batch: int) -> list[Damage]:
        """Only look. Raises: OSError."""
        files, _ = self._open_files(mends=False)
        try:
            return survey(files, known_batch).damages
        finally:
            for file in files:
                if file.handle is not None:
                    file.handle.close()

    # ---------------------------------------------------------------------------- headers

    def _open_files(self, *, mends: bool = True) -> tuple[list[DataFile], bool]:
        """All data files whose header is right, or was after a bit was turned back."""
        files: list[DataFile] = []
        was_damaged = False
        for name in sorted(filter(_format.DATA_NAME.fullmatch, self._storage.list())):
            handle = self._storage.open(name)
            data = handle.pread(FILE_HEADER_BYTES, 0)
            try:
                header = _format.decode_file_header(data)
            except FormatError as error:
                mended = _mended(data)
                if mends:
                    was_damaged = True
                    self._copy(name, 0, FILE_HEADER_BYTES, f"{name}.0.damaged")
                if mended is None:
                    handle.close()
                    if mends:
                        self._move_aside(name, str(error))
                    continue
                if mends:
                    handle.pwritev([mended], 0)
                    handle.datasync()
                    self._report.add_note(
                        f"{self._storage.describe(name)}: one bit of the file header (offset 0, 64 "
                        "bytes) was wrong and was turned back. Nothing is lost."
                    )
                header = _format.decode_file_header(mended)
            file = DataFile(
                header.file_id,
                header.length,
                header.seed,
                handle,
                home=self._storage,
                reused=header.reused,
            )
            files.append(file)
        return files, was_damaged

    def _move_aside(
        self, name: str, problem: str, readable: Sequence[tuple[int, int]] = ()
    ) -> None:
        target = fresh_name(self._storage, f"{name}.damaged")
        self._storage.rename(name, target)
        self._storage.sync_directory()
        self.gone.add(_format.file_id_of(name))
        self._report.add_note(
            f"{self._storage.describe(name)}: {problem}, so nothing in it can be read. The whole "
            f"file is now {target}."
        )
        if readable:
            self._report.add_readable(readable)

    def _move_unreadable(self, file: DataFile, files: Sequence[DataFile]) -> bool:
        """A file without a readable batch: the newest one may only be torn, see ``_tail``."""
        if file.file_id == max(item.file_id for item in files):
            return False
        assert file.handle is not None
        readable = readable_in(file)
        file.handle.close()
        file.handle = None
        self._move_aside(file.name, "no batch in it is whole", readable)
        return True

    # ---------------------------------------------------------------------------- stretches

    @staticmethod
    def _copy_name(damage: Damage) -> str:
        return f"{damage.file.name}.{damage.begin}.damaged"

    def _copy_stretch(self, damage: Damage) -> None:
        self._copy(damage.file.name, damage.begin, damage.length, self._copy_name(damage))

    def _copy(self, name: str, begin: int, length: int, target: str) -> None:
        if target in self._storage.list():
            return  # of a start that was cut off: what is in the file now may be half replaced
        source = self._storage.open(name)
        temporary = f"{target}.tmp"
        copy = self._storage.open(temporary, create=True)
        try:
            for at in range(begin, begin + length, _COPY_BYTES):
                data = source.pread(min(_COPY_BYTES, begin + length - at), at)
                copy.pwritev([data], at - begin)
            copy.datasync()
        finally:
            copy.close()
            source.close()
        self._storage.rename(temporary, target)

    def _replace(self, damage: Damage) -> None:
        """Void batches in place of what was there."""
        file = damage.file
        assert file.handle is not None
        count = damage.last_batch - damage.first_batch + 1
        pieces = -(-damage.length // _VOID_BYTES_MAX)
        if damage.length < count * BATCH_BYTES_MIN or count < pieces:
            raise CorruptRecordError(
                f"{damage.length} bytes are damaged, and {count} batches do not fit there. Restore "
                "the file from a copy",
                location=f"{self._storage.describe(file.name)} at offset {damage.begin}",
            )
        offset = damage.begin
        for number in range(damage.first_batch, damage.last_batch + 1):
            behind = damage.last_batch - number
            size = min(damage.end - offset - behind * BATCH_BYTES_MIN, _VOID_BYTES_MAX)
            if not damage.is_end_known:
                size = BATCH_BYTES_MIN
            file.handle.pwritev([_void(file.seed, number, size, damage)], offset)
            offset += size
        if file.reused and not damage.is_end_known:
            file.handle.pwritev([END_MARK[: file.length - offset]], offset)
        file.handle.datasync()


def _void(seed: int, number: int, size: int, damage: Damage) -> bytes:
    """A batch of *size* bytes that does nothing but move the counters."""
    payload = _format.encode_record(_format.VOID, bytes(size - BATCH_BYTES_MIN))
    header = _format.encode_batch_header(
        seed,
        payload,
        number,
        number - 1,
        damage.last_sequence,
        damage.last_ack if number == damage.last_batch else 0,
        damage.last_list,
        1,
    )
    return header + payload


def _mended(data: bytes) -> bytes | None:
    """A file header with one bit turned back, when that makes it right."""
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            _format.decode_file_header(bytes(changed))
        except FormatError:
            continue
        return bytes(changed)
    return None
