"""The mark of a journal in front of the database: whose it is, and how far it was carried over.

The mark is written in the transaction that carries a part of the journal over, so that after any
crash it says exactly which part that was. It is *open* while the journal may hold confirmed messages
that the database does not: then nobody opens the store without that journal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidegate.spi import StoreIOError
from tidegate_store_jdbc.database.adapter import Adapter

#: What to do about it, for whoever meets a journal that is not there.
_HINT: Final = (
    "start the gateway there with [store] plugin = 'journaled', or bring that directory here; "
    "journal_lost_policy = 'ignore' of that plugin gives those messages up"
)


class Mark(msgspec.Struct, frozen=True):
    """The row of the journal table.

    Attributes:
        journal: identity of the journal's contents.
        place: machine and directory, for people.
        position: up to which of its records the database has everything.
        is_open: the journal may hold more.
    """

    journal: str
    place: str
    position: int
    is_open: bool


async def read_mark(adapter: Adapter) -> Mark | None:
    """The mark; None when no journal was ever in front. Raises: DatabaseError."""
    rows = await adapter.control("find_journal_statement", (), fetch=True)
    if not rows:
        return None
    journal, place, position, is_open = rows[0]
    return Mark(str(journal), str(place), int(position), bool(is_open))


def lost_journal(mark: Mark) -> StoreIOError:
    """The error for a database whose journal is somewhere else."""
    return StoreIOError(
        f"the journal in {mark.place} may hold confirmed messages that are not in the database "
        f"yet; {_HINT}"
    )


def refuse_open_mark(mark: Mark | None) -> None:
    """Refuse to use the database without its journal. Raises: StoreIOError."""
    if mark is not None and mark.is_open:
        raise lost_journal(mark)
