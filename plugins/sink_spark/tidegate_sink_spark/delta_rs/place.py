"""Where delta-rs keeps a table: a directory of this machine, or an object store.

What differs is who keeps two writers apart and what survives a power cut. A local directory has the lock
that Spark's jobs take, too, and its commits are synced. An object store has neither: there a commit is an
object that is created *unless it is there* (a conditional put), and what the store accepted is durable. A
store that takes a second object of one name all the same lets two writers both win, so before the first
commit it is asked to refuse one.
"""

from __future__ import annotations

import importlib
import json
import re
import threading
import uuid
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from tidegate_sink_spark.delta_rs.lock import table_lock
from tidegate_sink_spark.delta_rs.types import delta_fields
from tidegate_sink_spark.delta_rs.uploading import Uploading
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.durable import LOG_DIRECTORY, SyncedCommits
from tidegate_sink_spark.job.files import local_path
from tidegate_sink_spark.job.table import FurtherColumns
from tidegate_sink_spark.placing.files import Placing

#: delta-rs itself tries for three minutes, and cannot be interrupted meanwhile: the sink tries again
#: anyway, and an operator wants to read soon what is wrong. The user's own go over them.
DEFAULTS: Final[Mapping[str, str]] = {
    "connect_timeout": "10s",
    "timeout": "60s",
    "max_retries": "4",
    "retry_timeout": "20s",
}
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_QUERY: Final = re.compile(r"(\w+://[^\s?]+)\?\S+")
_TEXT_MAX: Final = 500
#: Writers of one version at once: where several may win, nearly always several do.
_WRITERS: Final = 8


def delta_options(uri: str, options: Mapping[str, str]) -> dict[str, str] | None:
    """What delta-rs is told of the store of *uri*; None for a local directory."""
    return None if local_path(uri) is not None else {**DEFAULTS, **options}


def one_line(exc: BaseException) -> str:
    """What delta-rs says, with its causes; without colours, and without what follows a URL's ``?``.

    An Azure URL has its signature there, which is a key.
    """
    lines = _ESCAPES.sub("", str(exc)).replace("↳", "").splitlines()
    text = ": ".join(" ".join(line.split()) for line in lines if line.strip())
    return _QUERY.sub(r"\1", text or type(exc).__name__)[:_TEXT_MAX]


class Place(Protocol):
    """Where one table is. Blocking; raises OSError and what delta-rs raises, if nothing else is said.

    Attributes: uri and options are what delta-rs is told; is_local.
    """

    uri: str
    options: dict[str, str] | None
    is_local: bool

    def prepare(self) -> None:
        """Make or check what a table needs, before it is opened. Raises: CommitError, too."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Keep other writers away, where that can be done. Raises: CommitError."""
        ...

    def version_file(self, version: int) -> object:
        """Which file that version of the table is in; None when it is gone."""
        ...

    def begin_commit(self) -> None:
        """Before a commit."""
        ...

    def reach(self, version: int) -> None:
        """Make everything up to *version* durable. Raises: CommitError."""
        ...

    def forget(self) -> None:
        """It is another table now: nothing of it is known to be durable."""
        ...

    def placing(self, partition_by: tuple[str, ...], further: FurtherColumns) -> Placing:
        """What puts staged files there."""
        ...


def place_of(uri: str, options: Mapping[str, str], scratch: Path) -> Place:
    """Args: uri: a path or URI; scratch: a directory for files that are on their way to a store."""
    directory = local_path(uri)
    if directory is not None:
        return LocalPlace(directory)
    return ObjectPlace(uri.rstrip("/"), {**DEFAULTS, **options}, scratch)


class LocalPlace:
    """A :class:`Place` that is a directory."""

    def __init__(self, directory: Path) -> None:
        self.is_local = True
        self.uri = str(directory)
        self.options: dict[str, str] | None = None
        self._directory = directory
        self._synced = SyncedCommits(directory)

    def prepare(self) -> None:
        """See Place."""
        self._directory.parent.mkdir(parents=True, exist_ok=True)

    def lock(self) -> AbstractContextManager[None]:
        """See Place."""
        return table_lock(self._directory)

    def version_file(self, version: int) -> object:
        """See Place."""
        try:
            found = (self._directory / LOG_DIRECTORY / f"{version:020}.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def begin_commit(self) -> None:
        """See Place."""
        # Hadoop would compare what delta-rs writes with Spark's checksum of what was there before.
        (self._directory / LOG_DIRECTORY / "._last_checkpoint.crc").unlink(missing_ok=True)

    def reach(self, version: int) -> None:
        """See Place."""
        self._synced.reach(version)

    def forget(self) -> None:
        """See Place."""
        self._synced = SyncedCommits(self._directory)

    def placing(self, partition_by: tuple[str, ...], further: FurtherColumns) -> Placing:
        """See Place."""
        return Placing(self._directory, partition_by, further)


class ObjectPlace:
    """A :class:`Place` that is an object store."""

    def __init__(self, uri: str, options: dict[str, str], scratch: Path) -> None:
        self.is_local = False
        self.uri = uri
        self.options: dict[str, str] | None = options
        self._scratch = scratch
        self._handler: Any = None

    def prepare(self) -> None:
        """See Place: of several commits with one number the store must take one."""
        probe = f"{self.uri}/_tidegate/probe-{uuid.uuid4().hex}"
        with _store_errors(f"the object store of {self.uri} cannot be used"):
            try:
                several = _race(probe, self.options)
            finally:
                with suppress(
                    OSError
                ):  # a few hundred bytes, in a directory that no reader looks at
                    _empty(probe, self.options)
        if several:
            raise CommitError(
                f"the object store of {self.uri} takes several commits with one number, so that a second writer would "
                "replace rows; take one with conditional puts (If-None-Match)"
            )

    def lock(self) -> AbstractContextManager[None]:
        """See Place."""
        return nullcontext()

    def version_file(self, version: int) -> object:
        """See Place."""
        found = self._files().get_file_info([f"{LOG_DIRECTORY}/{version:020}.json"])[0]
        return (found.mtime_ns, found.size) if found.is_file else None

    def begin_commit(self) -> None:
        """See Place."""

    def reach(self, version: int) -> None:
        """See Place: what the store accepted is durable."""

    def forget(self) -> None:
        """See Place."""

    def placing(self, partition_by: tuple[str, ...], further: FurtherColumns) -> Placing:
        """See Place."""
        return Uploading(self._files(), self._scratch, partition_by, further)

    def _files(self) -> Any:
        if self._handler is None:
            self._handler = _files_of(self.uri, self.options)
        return self._handler


def _files_of(uri: str, options: Mapping[str, str] | None) -> Any:
    """delta-rs's own way to the objects below *uri*: the same keys and retries as its commits have."""
    internal: Any = importlib.import_module("deltalake._internal")
    return internal.DeltaFileSystemHandler(uri, dict(options or {}))


def _race(uri: str, options: Mapping[str, str] | None) -> bool:
    """Let several writers commit the same version of a table at *uri*; whether more than one did.

    At once, because one that comes later sees what is there before it writes. The same commits that the sink
    makes, so whatever keeps writers apart is asked.
    """
    deltalake: Any = importlib.import_module("deltalake")
    errors: Any = importlib.import_module("deltalake.exceptions")
    schema = deltalake.Schema.from_json(
        json.dumps({"type": "struct", "fields": delta_fields([("n", "BIGINT")])})
    )
    table = deltalake.DeltaTable
    writers = [table.create(uri, schema=schema, storage_options=options)]
    writers += [table(uri, storage_options=options) for _ in range(_WRITERS - 1)]
    start = threading.Barrier(_WRITERS)
    properties = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction("tidegate/probe", 1)]
    )

    def commit(writer: Any) -> bool:
        start.wait()
        try:
            writer.create_write_transaction(
                [], "append", schema, partition_by=[], commit_properties=properties
            )
        except errors.CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(_WRITERS) as pool:
        return sum(pool.map(commit, writers)) > 1


def _empty(uri: str, options: Mapping[str, str] | None) -> None:
    files = _files_of(uri, options)
    for version in (0, 1):
        files.delete_file(f"{LOG_DIRECTORY}/{version:020}.json")


@contextmanager
def _store_errors(what: str) -> Generator[None]:
    errors: Any = importlib.import_module("deltalake.exceptions")
    try:
        yield
    except (errors.DeltaError, OSError, ValueError) as exc:
        raise CommitError(f"{what}: {one_line(exc)}") from exc
