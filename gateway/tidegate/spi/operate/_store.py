"""The store: how large it is, which files it has, and what keeps each."""

from __future__ import annotations

import enum

import msgspec

from tidegate.spi.operate._overview import Room
from tidegate.spi.operate._paging import Limit
from tidegate.spi.storage.files import FileHolder, StoreFile, StorePart


class FileSort(enum.Enum):
    """The order of a list: the store's own, or by the live part of each file, smallest first."""

    ORDER = "order"
    SPARSE = "sparse"


class ShowStore(msgspec.Struct, frozen=True, tag="show-store"):
    """The store as a whole."""


class StoreDetails(msgspec.Struct, frozen=True, tag="store-details"):
    """The store.

    Attributes:
        store_id: identity of its contents.
        is_durable: what it has confirmed survives a power cut; is_writable: False after an error that ended writing.
        problem: why it takes no messages now; "": it does.
        messages: held by at least one list.
        disk_bytes: what it takes; reusable_bytes: of these, what new messages can take; claimed_bytes: what it
            will still take for what it has confirmed.
        used: what counts for ``broker.store_limit``; acknowledged: rows for sinks, and their limit in bytes; None
            without sinks.
        disk_free: bytes free where it writes; None: not measured.
        offers: its optional abilities: ``files``, ``large_bodies`` …
        directories: where it writes.
        parts: what it is made of, if it tells; parts_problem: why it cannot tell now, "" when it can.
    """

    store_id: str
    is_durable: bool
    is_writable: bool
    problem: str
    messages: int
    disk_bytes: int
    reusable_bytes: int
    claimed_bytes: int
    used: Room
    acknowledged: Room | None
    disk_free: int | None
    offers: tuple[str, ...]
    directories: tuple[str, ...]
    parts: tuple[StorePart, ...] = ()
    parts_problem: str = ""


class ListFiles(msgspec.Struct, frozen=True, tag="list-files"):
    """Files of a store that keeps messages in files, a page at a time.

    Attributes: match: text in the name or the state; "" for all.
    """

    match: str = ""
    sort: FileSort = FileSort.ORDER
    after: str = ""
    limit: Limit = 100


class FilePage(msgspec.Struct, frozen=True, tag="file-page"):
    """Rows of a list. Attributes: next: ``after`` of the next page; "" when there are no more."""

    rows: tuple[StoreFile, ...]
    next: str = ""


class ExplainFile(msgspec.Struct, frozen=True, tag="explain-file"):
    """Why a file is kept. Attributes: file: its name in the list."""

    file: str


class FileDetails(msgspec.Struct, frozen=True, tag="file-details"):
    """A file and what keeps it. Attributes: holders: those that keep most first."""

    row: StoreFile
    holders: tuple[FileHolder, ...]
