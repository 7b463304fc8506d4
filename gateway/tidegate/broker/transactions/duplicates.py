"""Duplicate ids: a message sent to a destination again under the same id is discarded.

The ids of each destination are a ring: when it is full the oldest is forgotten. An id becomes durable
in the same batch as its message, so after a crash both are there, or neither.

A repetition is confirmed like any message, so that its producer stops repeating it; but not before
the original is durable, and not at all when the original is dropped because the store is full: it
may be the only confirmation that the producer gets.

Source: Artemis, "Duplicate Message Detection" (``_AMQ_DUPL_ID``, ``id-cache-size``,
``persist-id-cache``).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tidegate.broker.limits.accounts import Account
from tidegate.broker.turn.turn import Unit, fail
from tidegate.broker.turn.writer import TurnWriter
from tidegate.config import BrokerConfig
from tidegate.spi import (
    AddDuplicateId,
    BranchId,
    DuplicateId,
    ForgetDuplicateIds,
    Held,
    RequestError,
    StoreFullError,
    text_bytes,
)

_log = logging.getLogger("tidegate.broker.duplicates")

#: Longer ids are remembered by their hash: a ring is a bound on memory only if its entries have one.
ID_CHARACTERS_MAX: Final = 128

#: What an id takes besides its characters: its place in a ring and its sequence.
ID_BYTES: Final = 130

#: All rings together hold at most this many times ``id_cache_size`` ids; beyond that the oldest ids
#: of the least recently used destination go. Destinations are unlimited, memory is not.
FULL_RINGS_MAX: Final = 50

#: A full ring forgets this fraction at a time, so that the store is told once and not each time.
_SLACK_PART: Final = 100


Repeats = list[tuple[Unit, Sequence[Callable[[], None]]]]


@dataclass(slots=True)
class _Fresh:
    """An id whose message is not durable yet.

    Attributes: turn: number of the turn its message is in; repeats: units of repetitions, and
        what takes them back.
    """

    turn: int
    repeats: Repeats = field(default_factory=Repeats)


class DuplicateIds:
    """The rings of all destinations.

    Attributes:
        is_on: ``id_cache_size`` is not 0.
        discarded: repetitions so far.
    """

    def __init__(
        self, writer: TurnWriter, config: BrokerConfig, account: Account, *, is_kept: bool
    ) -> None:
        """*account*: charged for them; *is_kept*: the store keeps them."""
        self._account = account
        self._bytes_max = config.id_cache_limit
        self._bytes = 0
        self._writer = writer
        self._is_wanted = config.persist_id_cache
        self._size = config.id_cache_size
        self._slack = self._size // _SLACK_PART
        self.is_on = self._size > 0
        self.discarded = 0
        self._persists = self.is_on and config.persist_id_cache and is_kept
        # By destination, the last used at the end: sequence by id, in ascending order.
        self._rings: dict[str, dict[str, int]] = {}
        self._count = 0
        self._fresh: dict[tuple[str, str], _Fresh] = {}
        self._swept_at = 0
        self._reserved: dict[tuple[str, str], BranchId] = {}

    def __len__(self) -> int:
        return self._count

    def recover(self, ids: Iterable[DuplicateId]) -> None:
        """Restore what the store knows; call once, before anybody publishes."""
        if self.is_on and self._is_wanted and not self._persists:
            _log.warning(
                "duplicate_ids=volatile: the store does not keep them, so duplicates "
                "of messages from before a restart are not detected"
            )
        for known in sorted(ids, key=lambda item: item.sequence):
            ring = self._rings.pop(known.destination, {})
            self._rings[known.destination] = ring
            if ring.pop(known.duplicate_id, None) is None:
                self._counted(known.duplicate_id, 1)
            ring[known.duplicate_id] = known.sequence
        for destination, ring in list(self._rings.items()):
            kept = self._size if self._persists else 0
            if len(ring) > kept:
                self._forget(destination, len(ring) - kept, told=True)
        self._limit_all()

    # --- asking --------------------------------------------------------------------------------

    def is_known(self, destination: str, duplicate_id: str, owner: str) -> bool:
        """Tell whether the message was sent already.

        Raises: RequestError when that is in doubt: a prepared branch sends it; named if it is
            *owner*'s.
        """
        text = _text(duplicate_id)
        branch_id = self._reserved.get((destination, text)) if self._reserved else None
        if branch_id is not None:
            name = f"the prepared transaction {branch_id}"
            if branch_id.owner != owner:
                name = "a prepared transaction"
            raise RequestError(
                f"a message with the duplicate id {text!r} is part of {name}; try again "
                "when that is completed"
            )
        ring = self._rings.get(destination)
        return ring is not None and text in ring

    def check_new(self, ids: Iterable[tuple[str, str]], owner: str) -> None:
        """Check that none of *ids* (destination, id) is known or comes twice; *owner* asks.

        Raises: RequestError that names the first.
        """
        seen: set[tuple[str, str]] = set()
        for destination, duplicate_id in ids:
            place = (destination, _text(duplicate_id))
            if place in seen or self.is_known(destination, duplicate_id, owner):
                self._count_discarded(destination, duplicate_id)
                raise RequestError(
                    "the transaction was rolled back: it sends a message to "
                    f"{destination} with the duplicate id {place[1]!r}, which was "
                    "already sent"
                )
            seen.add(place)

    # --- remembering ---------------------------------------------------------------------------

    def add(
        self, destination: str, duplicate_id: str, sequence: int, undo: list[Callable[[], None]]
    ) -> None:
        """A message with a new id was added to the filling turn; the caller makes the unit."""
        writer = self._writer
        text = _text(duplicate_id)
        ring = self._rings.pop(destination, None)
        if ring is None:
            ring = {}
        self._rings[destination] = ring
        ring[text] = sequence
        self._counted(text, 1)
        if self._persists:
            turn = writer.turn
            turn.operations.append(AddDuplicateId(destination, text, sequence))
            turn.synced = True
        if self._swept_at != writer.batches:
            self._swept_at = writer.batches
            self._fresh = {
                place: fresh for place, fresh in self._fresh.items() if fresh.turn >= writer.batches
            }
        self._fresh[destination, text] = _Fresh(writer.turns)
        undo.append(lambda: self._take_back(destination, text, sequence))
        if len(ring) > self._size + self._slack:
            self._forget(destination, len(ring) - self._size, told=self._persists)
        self._limit_all()

    def repeated(
        self,
        destination: str,
        duplicate_id: str,
        unit: Unit,
        undo: Sequence[Callable[[], None]],
    ) -> None:
        """A repetition is discarded; *unit* of the filling turn confirms it.

        Args: undo: takes back its other effects if the original is dropped.
        """
        self._count_discarded(destination, duplicate_id)
        writer = self._writer
        fresh = self._fresh.get((destination, _text(duplicate_id)))
        if fresh is not None and fresh.turn >= writer.batches:
            fresh.repeats.append((unit, undo))

    def _count_discarded(self, destination: str, duplicate_id: str) -> None:
        self.discarded += 1
        _log.debug("destination=%s duplicate_id=%r discarded", destination, duplicate_id)

    def _take_back(self, destination: str, text: str, sequence: int) -> None:
        """The message was dropped, because the store is full: the next try is not a repetition."""
        ring = self._rings.get(destination)
        if ring is not None and ring.get(text) == sequence:
            del ring[text]
            self._counted(text, -1)
        fresh = self._fresh.pop((destination, text), None)
        if fresh is None:
            return
        error = StoreFullError("the message store is full; try again later")
        for unit, undo in fresh.repeats:
            # In the dropped turn, or the next one: neither is confirmed yet.
            for step in undo:
                step()
            fail(unit, error)

    def _counted(self, text: str, count: int) -> None:
        """An id came (1) or went (-1)."""
        size = count * (ID_BYTES + text_bytes(text))
        self._count += count
        self._bytes += size
        self._account.add(Held.DUPLICATE_IDS, size)

    # --- branches ------------------------------------------------------------------------------

    def reserve(self, destination: str, duplicate_id: str, branch_id: BranchId) -> None:
        """A prepared branch sends it: nobody else may, or committing would fail."""
        self._reserved[destination, _text(duplicate_id)] = branch_id

    def release(self, destination: str, duplicate_id: str) -> None:
        """The branch is completed."""
        self._reserved.pop((destination, _text(duplicate_id)), None)

    # --- forgetting ----------------------------------------------------------------------------

    def _limit_all(self) -> None:
        limit = FULL_RINGS_MAX * self._size
        while self._count > limit or self._bytes > self._bytes_max:
            oldest = next(iter(self._rings))
            slack = min(self._slack, self._count // _SLACK_PART)
            excess = max(self._count - limit, slack, 1)
            count = min(len(self._rings[oldest]), excess)
            self._forget(oldest, count, told=self._persists)

    def _forget(self, destination: str, count: int, *, told: bool) -> None:
        """Forget the oldest ids of a ring, at least none. Args: told: the store is."""
        ring = self._rings[destination]
        gone = list(islice(ring, count))
        through = 0
        for text in gone:
            through = ring.pop(text)
            self._counted(text, -1)
        if not ring:
            del self._rings[destination]
        if told and gone:
            self._writer.add_operation(ForgetDuplicateIds(destination, through), synced=False)


def _text(duplicate_id: str) -> str:
    if len(duplicate_id) <= ID_CHARACTERS_MAX:
        return duplicate_id
    return "sha256:" + hashlib.sha256(duplicate_id.encode("utf-8", "surrogatepass")).hexdigest()
