"""A store's files and why each is kept, or what else it is made of: for operators, from stores that know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

#: Sequences listed for each holder; there can be millions.
SEQUENCES_MAX: Final = 20


class StoreFile(msgspec.Struct, frozen=True):
    """One file.

    Attributes:
        name: identifies it, below the store's directory.
        state: in the store's words: ``current`` (new messages go there), ``used``, ``spare``, ``free`` …
        length: bytes; live_bytes: bytes of messages that something still refers to.
        references: what refers to messages in it: places in lists, rows of the acknowledged log.
    """

    name: str
    state: str
    length: int
    live_bytes: int
    references: int


class FileHolder(msgspec.Struct, frozen=True):
    """What keeps messages in a file.

    Attributes:
        kind: ``queue``, ``durable subscription``, ``subscription``, ``prepared branch``, ``unknown list`` (its
            destination is gone), or ``acknowledged`` (rows that a sink has not released).
        destination: as in ``queue://orders``; a subscription's filter. For a branch: "" for the messages
            it sends; with a destination, the messages it locks there, which are counted for that list
            as well.
        client_id, subscription: of a subscription; of a branch, who prepared it and its id.
        principal: whose the queue, subscription or branch is; "": the gateway's own.
        pending_list: its id; 0 for the acknowledged log.
        messages: how many; live_bytes: bytes of their records (a message in several lists counts
            in each).
        sequences: the first SEQUENCES_MAX of them, in order; for the acknowledged log, of its rows.
    """

    kind: str
    destination: str
    client_id: str
    subscription: str
    principal: str
    pending_list: int
    messages: int
    live_bytes: int
    sequences: Sequence[int]


class StoreFiles(Protocol):
    """Offered by a store that keeps messages in files and knows why each is kept."""

    def store_files(self) -> Iterator[StoreFile]:
        """All current files, in the store's order; each takes some microseconds when it is reached."""
        ...

    async def why_kept(self, name: str) -> Sequence[FileHolder] | None:
        """What keeps the file *name*; () when nothing does, None when there is no such file.

        Looks a bit at a time: what comes and goes meanwhile may be missing, or counted twice.
        """
        ...


class StorePart(msgspec.Struct, frozen=True):
    """Something that a store is made of. Unknown or meaningless values are None.

    Attributes:
        kind: in the store's words: ``database file``, ``write-ahead log``, ``table``, ``lease``, ``journal file`` …
        name: unique among parts of this kind.
        disk_bytes: what it takes; reusable_bytes: of these, what new rows can use at once.
        rows, dead_rows: approximate; dead rows take their room until they are cleaned up.
        state: in words; "" for nothing to say.
        holder: of a lease: its holder, for people; expires_at: when it ends unless renewed, in microseconds since the
            epoch.
    """

    kind: str
    name: str
    disk_bytes: int | None = None
    reusable_bytes: int | None = None
    rows: int | None = None
    dead_rows: int | None = None
    state: str = ""
    holder: str = ""
    expires_at: int | None = None


class StoreParts(Protocol):
    """Offered by a store that is made of other things than its own files, such as a database."""

    async def store_parts(self) -> Sequence[StorePart]:
        """All parts, some hundreds at most. Must not make any user of the store wait.

        Raises: StoreError when it cannot be examined now. Cancellation: safe; it may hang as long as the database does.
        """
        ...
