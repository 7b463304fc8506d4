"""What was lost, for a person: one text file a start, written before anything else goes on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidegate_store_journal.log.storage import Storage, write_atomically
from tidegate_store_journal.start.damage import Damage

logger = logging.getLogger("tidegate.store.journal")

REPORT_NAME: Final = re.compile(r"damage-(\d{4,})\.report")
_TITLE: Final = """\
What this start found damaged or missing in {directory}, and what was lost.
Keep this file and every *.damaged file until you are sure that you need none of it.
"""


class LossReport:
    """Collects paragraphs and writes them to ``damage-NNNN.report``.

    Attributes: name: of the file; "" while there is nothing to report. notes: one sentence each,
        for the log.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._paragraphs: list[str] = []
        self.name = ""
        self.notes: list[str] = []
        #: Names a list, once the destinations are known.
        self.name_of: Callable[[int], str] = lambda list_id: f"list {list_id}"

    def add_note(self, text: str) -> None:
        """One more paragraph, which is also logged."""
        self._paragraphs.append(text)
        self.notes.append(text)

    def add_damage(self, damage: Damage, copy: str) -> None:
        """A stretch was taken out of a data file; *copy* is the file with its bytes."""
        where = self._storage.describe(damage.file.name)
        batches = f"batch {damage.first_batch}"
        if damage.last_batch > damage.first_batch:
            batches = f"batches {damage.first_batch} to {damage.last_batch}"
        note = (
            f"{where}: {damage.length} bytes at offset {damage.begin} were damaged ({batches}) and "
            f"were taken out; they are kept in {copy}."
        )
        self.notes.append(note)
        lines = [note]
        if damage.sequence_to and damage.sequence_from:
            if damage.sequence_to < damage.sequence_from:
                lines.append("No message was added there.")
            else:
                lines.append(
                    f"Lost: all messages that were added there; their sequences are among "
                    f"{damage.sequence_from} to {damage.sequence_to}."
                )
        else:
            lines.append("Lost: all messages that were added there; how many is not known.")
        lines.append(
            "Lost too: acknowledgements, drops and moves of other messages in there, so those may "
            "be delivered again; and changes to subscriptions, sessions and retained messages."
        )
        self._paragraphs.append("\n".join(lines))

    def add_lost(self, why: str, lost: Mapping[int, Sequence[int]]) -> None:
        """Messages (sequences by list) are pending no more because *why*."""
        if not lost:
            return
        count = sum(map(len, lost.values()))
        lines = [f"{count} pending messages are lost because {why}:"]
        for list_id in sorted(lost):
            lines.append(f"  {self.name_of(list_id)}: {_ranges(sorted(lost[list_id]))}")
        self._paragraphs.append("\n".join(lines))
        self.notes.append(f"{count} pending messages are lost because {why}.")

    def write(self) -> None:
        """Write the file when there is something new to say. Blocks. Raises: OSError."""
        if not self._paragraphs:
            return
        if not self.name:
            numbers = [int(m[1]) for m in map(REPORT_NAME.fullmatch, self._storage.list()) if m]
            self.name = f"damage-{max(numbers, default=0) + 1:04d}.report"
        title = _TITLE.format(directory=self._storage.describe(""))
        text = "\n\n".join([title.rstrip("\n"), *self._paragraphs]) + "\n"
        write_atomically(self._storage, self.name, text.encode())

    def log(self) -> None:
        """Say it in the log, too."""
        for note in self.notes:
            logger.error("recovery: %s", note)
        if self.name:
            logger.error("recovery: the full report is %s", self._storage.describe(self.name))


def _ranges(numbers: Sequence[int]) -> str:
    """``1-3, 7``."""
    parts: list[str] = []
    begin = end = -1
    for number in [*numbers, -1]:
        if number == end + 1 and begin >= 0:
            end = number
            continue
        if begin >= 0:
            parts.append(str(begin) if begin == end else f"{begin}-{end}")
        begin = end = number
    return ", ".join(parts)
