"""The journaled SQL store: the journal in front of a database.

Made of the public parts of two other rooms: the journal store, used as any store of the contract, and
the SQL store.
"""

from __future__ import annotations

from tidegate_store_journaled._options import JournaledOptions
from tidegate_store_journaled._store import JournaledStore

__all__ = ["JournaledOptions", "JournaledStore"]
