"""What a store's files are and why each is kept, or what else it is made of: for operators, from a store that knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

#: Sequences that are named of each holder; there can be millions.
SEQUENCES_MAX: Final = 20


class StoreFile(msgspec.Struct, frozen=True):
    """One file.

    Attributes:
        name: by which it is asked for, below the store's directory.
        state: in the store's words: ``current`` (new messages go there), ``used``, ``spare``, ``free`` …
        length: bytes; live_bytes: of them, those of messages that something refers to.
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
        destination: as in ``queue://orders``; a subscription's filter. "" for the messages that a
            branch sends; one with a destination locks messages of that list, which are counted for
            the list as well.
        client_id, subscription: of a subscription; of a branch, who prepared it and its id.
        principal: whose the queue, subscription or branch is; "": the gateway's own.
        pending_list: its id; 0 for the acknowledged log.
        messages: how many; live_bytes: bytes of their records (a message in several lists counts
            in each).
        sequences: the first SEQUENCES_MAX of them, in order; rows of the acknowledged log.
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
    """Offered by a store that keeps messages in files and knows why."""

    def store_files(self) -> Iterator[StoreFile]:
        """All that there are now, in the store's order; some microseconds for each, when it is taken."""
        ...

    async def why_kept(self, name: str) -> Sequence[FileHolder] | None:
        """What keeps the file *name*; () when nothing does, None when there is no such file.

        It looks a bit at a time: what comes and goes meanwhile may be missing, or counted twice.
        """
        ...


class StorePart(msgspec.Struct, frozen=True):
    """Something that a store is made of: what is not known of it, or makes no sense for it, is None.

    Attributes:
        kind: in the store's words: ``database file``, ``write-ahead log``, ``table``, ``lease``, ``journal file`` …
        name: that no other part of this kind has.
        disk_bytes: that it takes; reusable_bytes: of these, what new rows can have at once.
        rows, dead_rows: about so many; the dead ones take their room until they are cleaned up.
        state: of it, in words; "" for nothing to say.
        holder: of a lease, who has it, for people; expires_at: when it ends unless it is renewed, in microseconds since the epoch.
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
    """Offered by a store that is made of other things than files of its own, such as a database."""

    async def store_parts(self) -> Sequence[StorePart]:
        """All that there are, some hundreds at most. Nobody who uses the store waits for it.

        Raises: StoreError when it cannot be looked at now. Cancellation: safe; it takes as long as a database that hangs.
        """
        ...
