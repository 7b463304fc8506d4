"""Which stored messages refer to which large body: the index's half of their life.

A body is named by the messages that refer to it: usually one, two while a dead letter shares it
with other subscriptions of the original. Such a message is always counted as *shared*
(docs/journal-format.md section 11), so that the index notices when its last reference goes.
Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import msgspec

from tidegate.spi import LargeBody

#: Bytes of loose bodies that make a checkpoint due, so that the disk does not fill between two.
LOOSE_BYTES_MAX: Final = 64 << 20


class LargeReferences:
    """See the module.

    Attributes:
        bodies: by message sequence.
        loose: ids of bodies that no stored message refers to; a checkpoint removes them as soon as
            nobody in memory holds them either.
        on_loose: called when LOOSE_BYTES_MAX have become loose since the last checkpoint.
        on_gone: called with the id of each body that no message refers to any more.
    """

    def __init__(self) -> None:
        self.bodies: dict[int, LargeBody] = {}
        self.loose: set[str] = set()
        self._leaving: set[str] = set()  # loose since the checkpoint that is being written began
        self._counts: dict[str, int] = {}
        self._changed: dict[int, LargeBody | None] = {}  # since the last checkpoint
        self._loose_bytes = 0  # since the last checkpoint began
        self.on_loose: Callable[[], None] = lambda: None
        self.on_gone: Callable[[str], None] = lambda _: None

    def __bool__(self) -> bool:
        return bool(self.bodies)

    def __contains__(self, body_id: str) -> bool:
        return body_id in self._counts

    def is_shared(self, body_id: str) -> bool:
        """Whether more than one message refers to it."""
        return self._counts.get(body_id, 0) > 1

    def add(self, sequence: int, body: LargeBody) -> None:
        """Message *sequence* refers to *body* from now on. Idempotent."""
        if sequence in self.bodies:
            return
        # A copy: the index must not look like a client that holds the body.
        self.bodies[sequence] = self._changed[sequence] = msgspec.structs.replace(body)
        self._counts[body.id] = self._counts.get(body.id, 0) + 1
        if body.id in self.loose:
            self.loose.discard(body.id)
            self._loose_bytes = max(0, self._loose_bytes - body.size)
        self._leaving.discard(body.id)

    def remove(self, sequence: int) -> None:
        """The last reference to message *sequence* is gone. No error when it was not large."""
        body = self.bodies.pop(sequence, None)
        if body is None:
            return
        count = self._counts[body.id] - 1
        if count:
            self._counts[body.id] = count
        else:
            del self._counts[body.id]
            self.on_gone(body.id)
            self.add_loose(body)
        if self._changed.pop(sequence, None) is None:
            self._changed[sequence] = None  # the metadata store has it

    def add_loose(self, body: LargeBody) -> None:
        """No message refers to *body*: not yet, if ever (it has just been made), or not any more."""
        self.loose.add(body.id)
        self._loose_bytes += body.size
        if self._loose_bytes >= LOOSE_BYTES_MAX:
            self._loose_bytes = 0
            self.on_loose()

    def take_loose(self) -> set[str]:
        """What is loose now; from then on without the ids that a message came to refer to.

        Such a message may be acknowledged again, and loose, before the checkpoint that begins now is
        on disk; but after a power cut it can be pending, since only its addition has to be durable.
        """
        self._loose_bytes = 0
        self._leaving = self.loose.copy()
        return self._leaving

    def restore(self, bodies: dict[int, LargeBody]) -> None:
        """Take what the checkpoint knows (at start)."""
        for sequence, body in bodies.items():
            self.add(sequence, body)
        self._changed.clear()

    def keep_only(self, sequences: Container[int]) -> None:
        """Messages with other sequences are not referred to (at start)."""
        for sequence in [key for key in self.bodies if key not in sequences]:
            self.remove(sequence)

    def take_changes(self) -> dict[int, LargeBody | None]:
        """Since the last call: each body by sequence, None when it is gone."""
        changed, self._changed = self._changed, {}
        return changed

    def mark_everything_changed(self) -> None:
        """The metadata store is empty."""
        self._changed = dict(self.bodies)
