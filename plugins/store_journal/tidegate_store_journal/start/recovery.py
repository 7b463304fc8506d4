"""Opening a journal: what is there, what is newer than the checkpoint, and how it ends.

The rules are in docs/journal-format.md section 4. Everything here blocks and runs in a thread of
its own while nothing else touches the store.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.bodies.folders import Folders, Found, find_files
from tidegate_store_journal.checkpoint.bindings import BindingsFound
from tidegate_store_journal.checkpoint.marker import MARKER_NAME, take_marker
from tidegate_store_journal.checkpoint.metadata import Loaded, Metadata, MetadataError
from tidegate_store_journal.index.changes import ACKNOWLEDGED, DELIVERIES, FILES, LARGE, PENDING
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import DataFile, read_data_file, using
from tidegate_store_journal.log.format import DATA_OFFSET, FormatError
from tidegate_store_journal.log.storage import Storage
from tidegate_store_journal.start.bindings import keep_damaged, read_bindings
from tidegate_store_journal.start.losses import (
    Lost,
    lost_in_files,
    lost_in_stretches,
    missing_files,
)
from tidegate_store_journal.start.lossreport import LossReport
from tidegate_store_journal.start.quarantine import Quarantine
from tidegate_store_journal.start.rebuild import rebuild
from tidegate_store_journal.start.replay import ADVICE, Progress, Replay

FREE_NAME: Final = re.compile(r"journal-\d{10}\.free")
_TEMPORARY_NAME: Final = re.compile(
    r"((journal|bindings)-\d{10}\.(data|free)(\.\d+\.damaged)?|index-store-state"
    r"|damage-\d+\.report)\.tmp"
)
#: Progress is told at most so often; a batch takes microseconds.
_PROGRESS_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """What recovery may do besides reading, see the options of the same purpose."""

    quarantines: bool = False
    ignores_missing: bool = False
    checks_files: bool = False
    archives_index: bool = False


STRICT: Final = RecoveryPolicy()


@dataclass(slots=True)
class Recovered:
    """What :func:`recover` found.

    Attributes:
        bindings: the bindings journal, whose contents are in *index*.
        files: with batches, in the journal's order; spares: without; pool: names of dead files.
        tail_file, tail_offset: where the next batch goes; None for an empty journal.
        clean: the store had been closed properly (or did not exist).
        rebuilt: the metadata store was not used and holds nothing.
        is_settled: the checkpoint on disk is not *clean*, and what was replayed may be replayed again:
            nothing has to be written before the store is used.
        replayed: operations; repaired_bytes, notes: see RecoveryReport.
        lost: what is pending although its bytes are gone: to be dropped by the next batch.
        report: what was lost, written already as far as it is known.
        elsewhere, unsynced: see Replay.
    """

    store_id: str
    index: Index
    bindings: BindingsFound
    files: list[DataFile]
    spares: list[DataFile]
    pool: list[str]
    next_file_id: int
    tail_file: DataFile | None
    tail_offset: int
    clean: bool
    rebuilt: bool
    is_settled: bool
    replayed: int
    repaired_bytes: int
    notes: list[str]
    report: LossReport
    elsewhere: Found
    unsynced: list[tuple[int, int]]
    lost: list[Lost]


def recover(
    storage: Storage,
    metadata: Metadata,
    *,
    keep_acknowledged: bool,
    progress: Progress,
    policy: RecoveryPolicy = STRICT,
) -> Recovered:
    """Read a store, repair a torn tail, and do about damage what *policy* says.

    Raises: CorruptRecordError (nothing was changed), OSError.
    """
    progress = _Seldom(progress)
    report = LossReport(storage)
    quarantine = Quarantine(storage, report)
    elsewhere = find_files(Folders(storage), removes=True)
    _remove_leftovers(storage)
    storage.sync_directory()  # names that the last process made may only be in memory so far

    def attempt() -> Recovered:
        replay = Replay(storage, progress, keep_acknowledged=keep_acknowledged)
        replay.elsewhere = elsewhere
        replay.may_skip = policy.ignores_missing or bool(quarantine.gone)
        return _recover(replay, metadata, policy, quarantine, report)

    if policy.checks_files:
        damages = quarantine.look(_known_batch(storage, metadata))
        if damages and not policy.quarantines:
            raise CorruptRecordError(
                "damaged: "
                + "; ".join(f"{d.file.name}, {d.length} bytes at offset {d.begin}" for d in damages)
                + f". Nothing was changed. {ADVICE}",
                location=storage.describe(""),
            )
        if damages:
            quarantine.run(_known_batch(storage, metadata))
    try:
        return attempt()
    except CorruptRecordError:
        if not policy.quarantines or not quarantine.run(_known_batch(storage, metadata)):
            raise
    return attempt()


class _Seldom:
    """Progress that is told a few times a second, however often it is made."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            self._progress(what, done, total)


def _remove_leftovers(storage: Storage) -> None:
    """Of work that a crash cut off. Raises: OSError."""
    for name in storage.list():
        if _TEMPORARY_NAME.fullmatch(name):
            storage.unlink(name)


def _known_batch(storage: Storage, metadata: Metadata) -> int:
    """The highest batch that is known to have been synced; 0 when nothing says so."""
    index = Index(keep_acknowledged=False)
    known = read_bindings(storage, storage.list(), index, mends=True).mark.batch
    with contextlib.suppress(MetadataError):
        loaded = metadata.load(lambda _what, _done, _total: None)
        known = max(known, loaded.state.batch if loaded is not None else 0)
    return known


def _recover(
    replay: Replay,
    metadata: Metadata,
    policy: RecoveryPolicy,
    quarantine: Quarantine,
    report: LossReport,
) -> Recovered:
    names = replay.storage.list()
    store_id = open_files(replay, names)
    bindings = read_bindings(replay.storage, names, replay.index, mends=policy.quarantines)
    loaded = _load_metadata(replay, metadata, store_id, bindings, policy)
    store_id = store_id or bindings.store_id or (loaded.state.store_id if loaded else "")
    clean = not replay.files and not replay.spares  # it did not exist
    missing = fill_index(replay, loaded, bindings, policy, quarantine.gone)
    lost = [lost_in_files(replay.index, missing)]
    if loaded is not None:
        lost.append(lost_in_stretches(replay.index, quarantine.damages))
        clean = loaded.state.clean and not replay.replayed and not any(lost)
    repaired = replay.end(trusted=clean)
    # Now, because what is wrong with data files has been said.
    goes_on = policy.ignores_missing or policy.quarantines
    check_bindings(replay, bindings, store_id, loaded, goes_on=goes_on)
    keep_damaged(replay.storage, bindings, report)
    _mend_headers(replay, bindings)
    for _, place in replay.unsynced:
        file_id, offset, size, _ = _format.location_parts(place)
        if (file := replay.elsewhere.files.get(file_id)) is not None:
            replay.unproven.add_record(file, offset, offset + size)
    replay.unproven.rewrite()
    bindings.unproven.rewrite()
    replay.go_on_behind_the_missing()
    if replay.tail is not None:
        replay.tail.handle = replay.storage.open(replay.tail.name)
    pool = sorted(filter(FREE_NAME.fullmatch, names))
    known = [file.file_id for file in (*replay.files, *replay.spares)]
    known += [_format.file_id_of(name) for name in pool]
    known += quarantine.gone
    return Recovered(
        store_id=store_id or uuid.uuid4().hex,
        index=replay.index,
        bindings=bindings,
        files=replay.files,
        spares=replay.spares,
        pool=pool,
        next_file_id=max([replay.elsewhere.last_id, *known, *replay.index.files]) + 1,
        tail_file=replay.tail,
        tail_offset=replay.tail_offset,
        clean=clean and repaired == 0,
        rebuilt=loaded is None,
        is_settled=loaded is not None
        and not (loaded.state.clean or any(lost) or bindings.is_damaged or report.name),
        replayed=replay.replayed,
        repaired_bytes=repaired,
        notes=replay.notes,
        report=report,
        elsewhere=replay.elsewhere,
        unsynced=replay.unsynced,
        lost=lost,
    )


def check_bindings(
    replay: Replay, bindings: BindingsFound, store_id: str, loaded: Loaded | None, *, goes_on: bool
) -> None:
    """The bindings journal is of this store and goes as far as it must; behind a rebuild, if any.

    Raises: CorruptRecordError; with *goes_on* there is a note instead when it ends too early.
    """
    if bindings.store_id not in ("", store_id):
        name = bindings.files[0].file.name if bindings.files else "the bindings journal"
        raise replay.corrupt(name, 0, f"it is of store {bindings.store_id}; move it away")
    if loaded is not None:
        is_whole = loaded.state.bindings <= bindings.batch
    else:
        # Data files were put away only after a carry that said everything that was in them.
        is_whole = replay.unsaid_batch <= bindings.mark.batch
    if is_whole:
        return
    problem = (
        f"the bindings journal ends with batch {bindings.mark.batch} of the journal, and there was "
        "more, or data files are missing: destinations, subscriptions, sessions or retained "
        "messages are lost"
    )
    if not goes_on:
        name = bindings.files[-1].file.name if bindings.files else "bindings-*.data"
        raise replay.corrupt(
            name,
            0,
            f"{problem}. Restore its files from a copy; or set damaged_journal_policy = 'quarantine' "
            "in [store] to go on without",
        )
    replay.notes.append(f"{problem}.")
    bindings.is_damaged = True
    replay.index.mark_small_state_changed()


def open_files(replay: Replay, names: Sequence[str]) -> str:
    """Read all headers; returns the store id they share, "" when there is no file."""
    store_id = ""
    for name in sorted(filter(_format.DATA_NAME.fullmatch, names)):
        try:
            file = read_data_file(replay.storage, name)
        except FormatError as error:
            raise replay.corrupt(name, 0, f"{error}. {ADVICE}") from error
        (replay.files if file.first_batch else replay.spares).append(file)
        store_id = store_id or file.store_id
        if file.name != name or file.store_id != store_id:
            raise replay.corrupt(
                name,
                0,
                f"it is file {file.file_id} of store {file.store_id} and does not belong "
                "here; move it away",
            )
    replay.files.sort(key=lambda file: file.first_batch)
    return store_id


def _mend_headers(replay: Replay, bindings: BindingsFound) -> None:
    """Each file header is there twice; where one copy is damaged the other is written over it."""
    for file in (*replay.files, *replay.spares, *(item.file for item in bindings.files)):
        if file.mended_page:
            replay.notes.append(
                f"One of the two file headers of {replay.storage.describe(file.name)} was damaged; "
                "it was written again from the other."
            )
            with using(file) as handle:
                handle.pwritev([file.mended_page], 0)
                handle.datasync()


def _load_metadata(
    replay: Replay,
    metadata: Metadata,
    store_id: str,
    bindings: BindingsFound,
    policy: RecoveryPolicy,
) -> Loaded | None:
    storage = replay.storage
    directory = storage.metadata_directory
    is_told = False
    try:
        if directory is not None and not take_marker(storage, directory):
            is_told = True
            replay.notes.append(
                f"{storage.describe(MARKER_NAME)} was removed, so everything was rebuilt from "
                "the data files."
            )
            metadata.reset()
        loaded = metadata.load(replay.progress)
        if loaded is not None:
            check_owner(loaded, store_id)
            state, mark = loaded.state, bindings.mark
            if state.batch < mark.floor_batch or state.ack_released < mark.floor_released:
                raise MetadataError(
                    "it is older than the last clean-up, which put away data files that it names"
                )
            return loaded
    except MetadataError as error:
        replay.notes.append(f"The metadata store was rebuilt from the journal: {error}.")
        if policy.archives_index and directory is not None and directory.exists():
            metadata.close()
            number = 1
            while (target := directory.with_name(f"{directory.name}.corrupt-{number}")).exists():
                number += 1
            directory.rename(target)
            replay.notes.append(f"The damaged one is kept in {target}.")
    else:
        if replay.files and directory is not None and metadata.is_kept and not is_told:
            replay.notes.append("The metadata store was missing; it was rebuilt.")
    metadata.reset()
    return None


def check_owner(loaded: Loaded, store_id: str) -> None:
    """Raises: MetadataError when the checkpoint is another store's."""
    if store_id and loaded.state.store_id != store_id:
        raise MetadataError(f"it belongs to another store ({loaded.state.store_id})")


def fill_index(
    replay: Replay,
    loaded: Loaded | None,
    bindings: BindingsFound,
    policy: RecoveryPolicy,
    gone: Collection[int] = (),
) -> set[int]:
    """From the checkpoint and what is behind it; from everything there is when that is None.

    Returns: data files that are missing, which *policy* allows, or that are *gone*.
    Raises: CorruptRecordError, OSError.
    """
    bindings.keep_lives(replay.there())
    if loaded is None:
        rebuild(replay, bindings)
        return _missing_files(replay, policy, gone)
    restore(replay, loaded)
    state = loaded.state
    missing = _missing_files(replay, policy, gone, continues=state.file_id if state.batch else 0)
    replay.replay()
    replay.require(bindings.mark.batch)
    replay.index.settle()
    # Rows that sinks gave back before a checkpoint later than the one that was loaded, which was
    # cut off behind its carry or is lost: large bodies and records of them may be gone already.
    replay.index.release(bindings.mark.ack_released)
    return missing


def _missing_files(
    replay: Replay, policy: RecoveryPolicy, gone: Collection[int], *, continues: int = 0
) -> set[int]:
    """Data files that messages are in, or that the journal *continues* in, and that are not there.

    Raises: CorruptRecordError unless *policy* allows it or they are in *gone*.
    """
    there = replay.there()
    missing = missing_files(replay.index, there)
    if continues and continues not in there:
        held = missing.get(continues)
        missing[continues] = "the journal continues in it" + (f", {held}" if held else "")
    refused = sorted(missing.keys() - gone)
    if refused and not policy.ignores_missing:
        held = "; ".join(f"{_format.file_name(item)} ({missing[item]})" for item in refused)
        raise replay.corrupt(
            _format.file_name(refused[0]),
            0,
            f"{len(refused)} data {'files are' if len(refused) > 1 else 'file is'} missing: {held}. "
            "Restore them; or set ignore_missing_journalfiles = true in [store] to start without "
            "what was in them",
        )
    return set(missing)


def restore(replay: Replay, loaded: Loaded) -> None:
    """Fill the index with the checkpoint."""
    index, state, rows = replay.index, loaded.state, loaded.rows
    for (list_id, _), piece in rows[PENDING].items():
        index.list_of(list_id).restore_piece(piece)
    for (list_id, sequence), count in rows[DELIVERIES].items():
        index.list_of(list_id).deliveries[sequence] = count
    index.large.restore({sequence: body for (sequence,), body in rows[LARGE].items()})
    there = replay.there()
    for (file_id,), spoken in rows[FILES].items():
        if file_id not in there:
            index.forget_file(file_id)  # put away after that checkpoint
            continue
        use = index.file_use(file_id)
        use.speaks_of.update(spoken)
        use.speaks_of_stored = len(use.speaks_of)
        # Which of them are origins of copies is not stored; all of them is on the safe side.
        use.copied_from.update(spoken)
    replay.count(list(rows[ACKNOWLEDGED].values()), state.ack_last, state.ack_released)
    index.batch = state.batch
    index.last_sequence = index.watermark = state.last_sequence
    index.last_list = state.last_list
    replay.expected = state.batch + 1
    replay.unproven.proven = state.batch
    replay.tail_offset = state.offset
    replay.tail = next((file for file in replay.files if file.file_id == state.file_id), None)
    for file in replay.spares:
        use = index.files.get(file.file_id)
        if (use is not None and use.references) or (state.batch and state.file_id == file.file_id):
            raise replay.corrupt(
                file.name,
                DATA_OFFSET,
                "the header of the first batch is damaged. Restore the file from a copy",
            )
