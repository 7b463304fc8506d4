"""The store, vm and file cursors that feed consumers from a pending list.

``cursor = "store"`` keeps what fits into memory and reads the rest from the message store,
``"vm"`` keeps everything in memory and slows producers at the limit, and ``"file"`` spools to a
temporary file at the limit. Each is an entry point of its own (``cursor-store``, ``cursor-vm``,
``cursor-file``).
"""

from __future__ import annotations

from tidegate_cursors._file_cursor import FileCursor, FileCursorFactory
from tidegate_cursors._store_cursor import StoreCursor, StoreCursorFactory
from tidegate_cursors._vm_cursor import VmCursor, VmCursorFactory

__all__ = [
    "FileCursor",
    "FileCursorFactory",
    "StoreCursor",
    "StoreCursorFactory",
    "VmCursor",
    "VmCursorFactory",
]
