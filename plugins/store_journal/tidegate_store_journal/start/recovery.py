"""Opening a journal: what is there, what is newer than the checkpoint, and how it ends.

The rules are in docs/journal-format.md section 4. Everything here blocks and runs in its own thread
while nothing else touches the store.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from tidegate.spi import (
    CorruptRecordError,
    Progress,
    RecoveredDestination,
    RecoveredState,
    RecoveryReport,
)
from tidegate_store_journal.bodies.folders import Folders, find_files
from tidegate_store_journal.checkpoint.marker import MARKER_NAME, take_marker
from tidegate_store_journal.checkpoint.metadata import Loaded, Metadata, MetadataError
from tidegate_store_journal.index.changes import ACKNOWLEDGED, DELIVERIES, FILES, LARGE, PENDING
from tidegate_store_journal.index.index import Index
from tidegate_store_journal.log import format as _format
from tidegate_store_journal.log.datafile import read_data_file, using
from tidegate_store_journal.log.format import DATA_NAME, DATA_OFFSET, FREE_NAME, FormatError
from tidegate_store_journal.log.storage import Storage, length_of
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.start.bindings import keep_damaged, read_bindings
from tidegate_store_journal.start.damage import Quarantine
from tidegate_store_journal.start.losses import LossReport, find_lost, missing_files
from tidegate_store_journal.start.rebuild import rebuild
from tidegate_store_journal.start.replay import ADVICE, Replay

_TEMPORARY_NAME: Final = re.compile(
    r"((journal|bindings)-\d{10}\.(data|free)(\.\d+\.damaged)?|index-store-state"
    r"|damage-\d+\.report)\.tmp"
)
#: Progress is reported at most this often; a batch takes microseconds.
_PROGRESS_SECONDS: Final = 0.1


def recover(
    storage: Storage,
    metadata: Metadata,
    options: JournalOptions,
    *,
    keep_acknowledged: bool,
    progress: Progress,
) -> Replay:
    """Read a store, repair a torn tail, and treat damage as *options* say.

    Raises: CorruptRecordError (nothing was changed), OSError.
    """
    report = LossReport(storage)
    quarantine = Quarantine(storage, report, not options.quarantines)
    elsewhere = find_files(Folders(storage), removes=True)
    for name in filter(_TEMPORARY_NAME.fullmatch, storage.list()):
        storage.unlink(name)  # from work that a crash interrupted
    storage.sync_directory()  # the last process's names may only be in memory so far
    told = _seldom(progress)

    def attempt() -> Replay:
        index = Index(keep_acknowledged=keep_acknowledged)
        replay = Replay(storage, options, elsewhere, told, index, report)
        replay.may_skip = options.ignore_missing_journalfiles or bool(quarantine.gone)
        _recover(replay, metadata, quarantine)
        return replay

    if options.check_for_corrupt_journal_files:
        quarantine.run(_known_batch(storage, metadata))
    try:
        return attempt()
    except CorruptRecordError:
        if not options.quarantines or not quarantine.run(_known_batch(storage, metadata)):
            raise
    return attempt()


def _seldom(progress: Progress) -> Progress:
    """Reports progress a few times a second, however often it is made."""
    due = 0.0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + _PROGRESS_SECONDS
            progress(what, done, total)

    return tell


def _known_batch(storage: Storage, metadata: Metadata) -> int:
    """The highest batch known to have been synced; 0 when nothing says so."""
    index = Index(keep_acknowledged=False)
    known = read_bindings(storage, storage.list(), index, mends=True).mark.batch
    with suppress(MetadataError):
        loaded = metadata.load(lambda _what, _done, _total: None)
        known = max(known, loaded.state.batch if loaded is not None else 0)
    return known


def _recover(replay: Replay, metadata: Metadata, quarantine: Quarantine) -> None:
    storage = replay.storage
    names = storage.list()
    open_files(replay, names)
    bindings = replay.bindings = read_bindings(
        storage, names, replay.index, mends=replay.options.quarantines
    )
    loaded = _load_metadata(replay, metadata)
    stored_id = loaded.state.store_id if loaded is not None else ""
    replay.store_id = replay.store_id or bindings.store_id or stored_id or uuid.uuid4().hex
    clean = not replay.files and not replay.spares  # it did not exist
    missing = fill_index(replay, loaded, quarantine.gone)
    why = "the data files are missing that held them"
    replay.lost.append(find_lost(replay.index, why, missing))
    if loaded is not None:
        replay.lost.append(quarantine.lost(replay.index))
        clean = loaded.state.clean and not replay.replayed and not any(replay.lost)
    replay.end(trusted=clean)
    # Now, because problems of data files have been reported.
    check_bindings(replay, loaded)
    keep_damaged(storage, bindings, replay.report)
    _mend_headers(replay)
    for _, place in replay.unsynced:
        file_id, offset, size, _ = _format.location_parts(place)
        if (file := replay.elsewhere.files.get(file_id)) is not None:
            replay.unproven.add_record(file, offset, offset + size)
    replay.unproven.rewrite()
    bindings.unproven.rewrite()
    replay.go_on_behind_the_missing()
    if replay.tail is not None:
        replay.tail.handle = storage.open(replay.tail.name)
    own = [name for name in names if DATA_NAME.fullmatch(name) or FREE_NAME.fullmatch(name)]
    ids = [*map(_format.file_id_of, own), *quarantine.gone, *replay.index.files]
    ids.append(replay.elsewhere.last_id)
    replay.next_file_id = max(ids) + 1
    _keep_usable(replay, names)
    replay.clean = clean and replay.repaired_bytes == 0
    replay.rebuilt = loaded is None
    replay.is_settled = loaded is not None and not (
        loaded.state.clean or any(replay.lost) or bindings.is_damaged or replay.report.name
    )


def _keep_usable(replay: Replay, names: Sequence[str]) -> None:
    """Keep spares and dead files that can be reused; delete those of another length, or too many."""
    storage, options = replay.storage, replay.options
    for file in [file for file in replay.spares if file.length != options.file_length]:
        replay.spares.remove(file)
        storage.unlink(file.name)
    limit = options.journal_pool_files - len(replay.files) - len(replay.spares)
    for name in sorted(filter(FREE_NAME.fullmatch, names)):
        is_wanted = options.journal_pool_files < 0 or len(replay.pool) < limit
        if is_wanted and length_of(storage, name) == options.file_length:
            replay.pool.append(name)
        else:
            storage.unlink(name)


def recovered_state(found: Replay) -> RecoveredState:
    """What the broker is told."""
    index = found.index
    destinations = [
        RecoveredDestination(*msgspec.structs.astuple(known))
        for known in index.destinations.values()
    ]
    lists = [*index.lists, *(known.pending_list for known in destinations), *index.subscriptions]
    return RecoveredState(
        store_id=found.store_id,
        last_sequence=index.last_sequence,
        last_pending_list=max([index.last_list, *lists]),
        destinations=destinations,
        subscriptions=list(index.subscriptions.values()),
        sessions=list(index.sessions.values()),
        inflight=list(index.inflight_records()),
        retained=list(index.retained.values()),
        pending=index.counts(),
        report=RecoveryReport(
            clean=found.clean,
            notes=tuple(found.notes),
            counts={"replayed": found.replayed, "repaired_bytes": found.repaired_bytes},
        ),
    )


def check_bindings(replay: Replay, loaded: Loaded | None) -> None:
    """Check that the bindings journal is this store's and goes as far as it must; after a rebuild, if any.

    Raises: CorruptRecordError; if the options say to go on, there is a note instead when it ends
        too early.
    """
    bindings, options = replay.bindings, replay.options
    if bindings.store_id not in ("", replay.store_id):
        name = bindings.files[0].file.name if bindings.files else "the bindings journal"
        raise replay.corrupt(name, 0, f"it is of store {bindings.store_id}; move it away")
    if loaded is not None:
        is_whole = loaded.state.bindings <= bindings.batch
    else:
        # Data files were put away only after a carry that recorded everything in them.
        is_whole = replay.unsaid_batch <= bindings.mark.batch
    if is_whole:
        return
    problem = (
        f"the bindings journal ends with batch {bindings.mark.batch} of the journal, and there was "
        "more, or data files are missing: destinations, subscriptions, sessions or retained "
        "messages are lost"
    )
    if not (options.ignore_missing_journalfiles or options.quarantines):
        raise replay.corrupt(
            bindings.files[-1].file.name if bindings.files else "bindings-*.data",
            0,
            f"{problem}. Restore its files from a copy; or set damaged_journal_policy = 'quarantine' "
            "in [store] to go on without",
        )
    replay.notes.append(f"{problem}.")
    bindings.is_damaged = True
    replay.index.mark_small_state_changed()


def open_files(replay: Replay, names: Sequence[str]) -> None:
    """Read all headers, and the store id that they share. Raises: CorruptRecordError, OSError."""
    for name in sorted(filter(DATA_NAME.fullmatch, names)):
        try:
            file = read_data_file(replay.storage, name)
        except FormatError as error:
            raise replay.corrupt(name, 0, f"{error}. {ADVICE}") from error
        (replay.files if file.first_batch else replay.spares).append(file)
        replay.store_id = replay.store_id or file.store_id
        if file.name != name or file.store_id != replay.store_id:
            raise replay.corrupt(
                name,
                0,
                f"it is file {file.file_id} of store {file.store_id} and does not belong "
                "here; move it away",
            )
    replay.files.sort(key=lambda file: file.first_batch)


def _mend_headers(replay: Replay) -> None:
    """Each file header is there twice: overwrite a damaged copy with the other one."""
    bindings = (item.file for item in replay.bindings.files)
    for file in (*replay.files, *replay.spares, *bindings):
        if file.mended_page:
            replay.notes.append(
                f"One of the two file headers of {replay.storage.describe(file.name)} was damaged; "
                "it was written again from the other."
            )
            with using(file) as handle:
                handle.pwritev([file.mended_page], 0)
                handle.datasync()


def _load_metadata(replay: Replay, metadata: Metadata) -> Loaded | None:
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
            check_owner(loaded, replay.store_id)
            state, mark = loaded.state, replay.bindings.mark
            if state.batch < mark.floor_batch or state.ack_released < mark.floor_released:
                raise MetadataError(
                    "it is older than the last clean-up, which put away data files that it names"
                )
            return loaded
    except MetadataError as error:
        replay.notes.append(f"The metadata store was rebuilt from the journal: {error}.")
        if replay.options.archive_corrupted_index and directory is not None and directory.exists():
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


def fill_index(replay: Replay, loaded: Loaded | None, gone: Collection[int] = ()) -> set[int]:
    """Fill the index from the checkpoint and what follows it; if that is None, from everything there is.

    Returns: data files that are missing, as the options allow, or that are *gone*.
    Raises: CorruptRecordError, OSError.
    """
    bindings = replay.bindings
    bindings.keep_lives(replay.there())
    if loaded is None:
        rebuild(replay)
        return _missing_files(replay, gone)
    _restore(replay, loaded)
    state = loaded.state
    missing = _missing_files(replay, gone, continues=state.file_id if state.batch else 0)
    replay.replay()
    replay.require(bindings.mark.batch)
    replay.index.settle()
    # Rows that sinks released before a checkpoint later than the loaded one, which was cut off
    # after its carry or is lost: large bodies and records of them may be gone already.
    replay.index.release(bindings.mark.ack_released)
    return missing


def _missing_files(replay: Replay, gone: Collection[int], *, continues: int = 0) -> set[int]:
    """Missing data files that messages are in, or that the journal *continues* in.

    Raises: CorruptRecordError unless the options allow it or they are in *gone*.
    """
    there = replay.there()
    missing = missing_files(replay.index, there)
    if continues and continues not in there:
        held = missing.get(continues)
        missing[continues] = "the journal continues in it" + (f", {held}" if held else "")
    refused = sorted(missing.keys() - gone)
    if refused and not replay.options.ignore_missing_journalfiles:
        held = "; ".join(f"{_format.file_name(item)} ({missing[item]})" for item in refused)
        raise replay.corrupt(
            _format.file_name(refused[0]),
            0,
            f"{len(refused)} data {'files are' if len(refused) > 1 else 'file is'} missing: {held}. "
            "Restore them; or set ignore_missing_journalfiles = true in [store] to start without "
            "what was in them",
        )
    return set(missing)


def _restore(replay: Replay, loaded: Loaded) -> None:
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
        # Which of them are origins of copies is not stored; taking all is on the safe side.
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
