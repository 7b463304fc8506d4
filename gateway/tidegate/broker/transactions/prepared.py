"""One prepared branch, and what a transaction leaves in it."""

from __future__ import annotations

import msgspec

from tidegate.broker.lists.pending_list import InFlight, PendingList
from tidegate.broker.transactions.transactions import Outcome, Transaction
from tidegate.spi import Branch, BranchState, LockedMessages


class Prepared:
    """A branch, and what is known of it only while the gateway runs.

    Attributes:
        stored: what the store keeps.
        lists: of ``stored.locked``, in its order; None for one that is gone.
        unstored: messages that it acknowledged of lists that are not stored.
        is_claimed: its locked messages were claimed from their cursors, not delivered.
        is_durable: it is prepared.
        is_busy: it is being prepared or completed just now.
    """

    __slots__ = ("is_busy", "is_claimed", "is_durable", "lists", "stored", "unstored")

    def __init__(self, stored: Branch, lists: list[PendingList | None]) -> None:
        self.stored = stored
        self.lists = lists
        self.unstored: list[InFlight] = []
        self.is_claimed = False
        self.is_durable = True
        self.is_busy = False

    def locked(self) -> list[tuple[PendingList, LockedMessages]]:
        """Those whose lists are still there."""
        pairs = zip(self.lists, self.stored.locked, strict=True)
        return [
            (found, item) for found, item in pairs if found is not None and not found.is_removed
        ]


def locked_by(
    transaction: Transaction, protocol: str
) -> tuple[list[LockedMessages], list[PendingList | None], list[InFlight]]:
    """What a transaction acknowledged and rejected, list by list, and what is not stored."""
    locked: list[LockedMessages] = []
    lists: list[PendingList | None] = []
    unstored: list[InFlight] = []
    for step in transaction.settled():
        by_list: dict[PendingList, list[InFlight]] = {}
        for entry in step.entries:
            by_list.setdefault(entry[1], []).append(entry)
        for pending_list, entries in by_list.items():
            if not pending_list.is_stored or pending_list.is_removed:
                unstored += entries
                continue
            lists.append(pending_list)
            locked.append(
                LockedMessages(
                    pending_list.id,
                    tuple(message.sequence for message, _, _ in entries),
                    tuple(delivered_at for _, _, delivered_at in entries),
                    step.consumer.client.client_id,
                    step.consumer.subscription_name,
                    protocol,
                    step.outcome is Outcome.REJECTED,
                )
            )
    return locked, lists, unstored


def decided_record(stored: Branch, *, commit: bool, now: int) -> Branch:
    """The record of what an operator decided."""
    return msgspec.structs.replace(
        stored,
        pending_list=0,
        state=BranchState.COMMITTED if commit else BranchState.ROLLED_BACK,
        completed_at=now,
        locked=(),
        duplicate_ids=(),
    )
