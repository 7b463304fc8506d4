"""Prepared branches of distributed transactions (XA): what survives a restart.

A branch is prepared when everything it asked for is durable but not visible: the messages it
sends wait in a pending list of its own, the messages it acknowledged are locked. From then on
only its transaction manager, or an operator, decides its outcome.

Source: X/Open Distributed Transaction Processing: The XA Specification, sections 2.3 and 4.2.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

#: Longest global transaction id and longest branch qualifier, bytes (XA section 4.2: MAXGTRIDSIZE).
BRANCH_PART_BYTES_MAX: Final = 64

_FORMAT_ID_MIN: Final = -(1 << 31)
_FORMAT_ID_MAX: Final = (1 << 31) - 1
_TEXT: Final = re.compile(r"(-?\d{1,10}):((?:[0-9a-f]{2}){1,64}):((?:[0-9a-f]{2}){0,64})")


class BranchId(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the transaction manager calls a branch (XA section 4.2, ``XID``).

    Attributes:
        format_id: how to read the other two; the transaction manager's choice, 32 bits, signed.
        global_transaction_id: 1 to 64 bytes, the same for all branches of a transaction.
        branch_qualifier: 0 to 64 bytes.
        owner: the principal whose branch it is, set by the broker: the same three values from another
            principal name another branch.
    """

    format_id: int
    global_transaction_id: bytes
    branch_qualifier: bytes = b""
    owner: str = ""

    def __str__(self) -> str:
        """``FORMAT:GLOBAL:QUALIFIER@OWNER`` with both byte strings in hexadecimal."""
        xid = f"{self.format_id}:{self.global_transaction_id.hex()}:{self.branch_qualifier.hex()}"
        return f"{xid}@{self.owner}" if self.owner else xid


def check_branch_id(branch_id: BranchId) -> None:
    """Raises: ValueError for one that the XA specification does not allow."""
    if not _FORMAT_ID_MIN <= branch_id.format_id <= _FORMAT_ID_MAX:
        raise ValueError("the format id of a branch must fit in 32 bits")
    if not 1 <= len(branch_id.global_transaction_id) <= BRANCH_PART_BYTES_MAX:
        raise ValueError("a global transaction id must have 1 to 64 bytes")
    if len(branch_id.branch_qualifier) > BRANCH_PART_BYTES_MAX:
        raise ValueError("a branch qualifier must not be longer than 64 bytes")


def parse_branch_id(text: str) -> BranchId:
    """The inverse of ``str(branch_id)``. Raises: ValueError."""
    xid, _, owner = text.strip().partition("@")
    found = _TEXT.fullmatch(xid.lower())
    if found is None:
        raise ValueError(
            f"{text[:60]!r} is not a branch id; write FORMAT:GLOBAL:QUALIFIER@PRINCIPAL "
            "with GLOBAL and QUALIFIER in hexadecimal, as listed"
        )
    parts = bytes.fromhex(found[2]), bytes.fromhex(found[3])
    branch_id = BranchId(int(found[1]), *parts, owner)
    check_branch_id(branch_id)
    return branch_id


class BranchState(enum.IntEnum):
    """The state of a stored branch."""

    PREPARED = 0
    """In doubt: it will be committed or rolled back."""

    COMMITTED = 1
    """An operator committed it (heuristically); kept until the transaction manager knows."""

    ROLLED_BACK = 2
    """An operator rolled it back (heuristically); kept until the transaction manager knows."""


class LockedMessages(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Messages of one list that a branch acknowledged or rejected.

    They stay pending in the list, and nobody gets them while the branch is in doubt.

    Attributes:
        sequences: in the order of acknowledgement.
        delivered_at: when each was handed to the consumer, microseconds since the epoch.
        client_id, subscription, protocol, principal: the consumer, as in ``Acknowledge``.
        rejected: the client rejected them: committing redelivers or dead-letters them.
        delivery_counts: as in ``Acknowledge``.
    """

    pending_list: int
    sequences: tuple[int, ...]
    delivered_at: tuple[int, ...] = ()
    client_id: str = ""
    subscription: str = ""
    protocol: str = ""
    rejected: bool = False
    principal: str = ""
    delivery_counts: tuple[int, ...] = ()


class Branch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A branch that was prepared, or that an operator completed.

    Attributes:
        branch_id: its key.
        pending_list: holds the messages that it sends, in order; 0 when it sends none. The list
            belongs to no destination and no subscription.
        state: see :class:`BranchState`; a completed branch has no messages left.
        prepared_at: microseconds since the epoch.
        completed_at: when an operator completed it, same unit; 0 while it is in doubt.
        client_id, protocol: of the connection that prepared it.
        locked: the messages it acknowledged or rejected.
        duplicate_ids: (sequence in *pending_list*, destination, id) of each message it sends with a
            duplicate id.
    """

    branch_id: BranchId
    pending_list: int = 0
    state: BranchState = BranchState.PREPARED
    prepared_at: int = 0
    completed_at: int = 0
    client_id: str = ""
    protocol: str = ""
    locked: tuple[LockedMessages, ...] = ()
    duplicate_ids: tuple[tuple[int, str, str], ...] = ()

    @property
    def principal(self) -> str:
        """Who prepared it: only this principal may complete it."""
        return self.branch_id.owner
