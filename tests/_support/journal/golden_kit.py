"""The golden directories: what one program wrote, to be read by all that come later.

``python tests/_support/journal/golden_kit.py`` writes ``directory-1.tar.xz`` anew: after a SIGKILL
with a replay to do, and after a clean stop. Only a new format version may need that once there
was a release.
"""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import tempfile
from pathlib import Path

from journal_kit import killed, options

from tidegate.spi import (
    Acknowledge,
    AddDestination,
    AddDuplicateId,
    AddMessage,
    Branch,
    BranchId,
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Operation,
    PutBranch,
    PutInflight,
    PutSession,
    PutSubscription,
    Session,
    SetRetained,
    StoreContext,
    Subscription,
    WriteBatch,
)
from tidegate_store_journal import JournalStore

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "plugins" / "store_journal" / "golden" / "directory-1.tar.xz"
LAPTOP = Subscription(2, "laptop", "news", "topic://news.>", True, owner="ann")
PHONE = Subscription(3, "phone", "alerts/#", "topic://alerts.>", True, owner="ann")
SESSION = Session(
    "key of the phone", 60, options={"a": "b"}, protocol="mqtt", owner="ann", client_id="phone"
)
SHARED = Subscription(
    6, "phone", "$queue/orders", "queue://orders", True, owner="ann", session=SESSION.key
)
INFLIGHT = InflightRecord(
    SESSION.key, InflightDirection.OUT, 7, InflightState.PUBLISHED, "alerts/#", 22
)
RETAINED = Message("topic://alerts.fire", b"retained")
BRANCH = Branch(BranchId(1, b"one", b"\xff"), 5)
#: In the order in which they were acknowledged; released rows of the directory that was closed.
ROWS = [1, 3, 5, 20, *range(23, 40)]
RELEASED = 19
ORDERS = [2, 4, *range(6, 20), 40, 41, 42, 60]


def message(sequence: int, size: int = 900, destination: str = "queue://orders") -> Message:
    """One whose body begins with its number."""
    body = (b"%d ." % sequence).ljust(size, b".")
    return Message(destination, body, (("n", str(sequence)),), 5)


def opened_store(where: Path) -> JournalStore:
    """A store of small files, with one destination in a directory of its own."""
    context = StoreContext(where, "golden", keep_acknowledged=True)
    changes = {"per_destination": ("queue://split",), "large_message_min_size": 4096}
    return JournalStore(context, options(journal_max_file_length=16 << 10, **changes))


async def fill(store: JournalStore, directory: Path) -> Path:
    """Everything that a journal can hold. Returns: a copy as a SIGKILL would have left it."""

    async def write(*operations: Operation) -> None:
        await store.write(WriteBatch(list(operations)))

    await write(
        AddDestination("queue://orders", 1, "ann", producers_paused=True),
        AddDestination("queue://split", 4, consumers_paused=True),
        PutSubscription(LAPTOP),
        PutSubscription(PHONE),
        PutSession(SESSION),
        PutSubscription(SHARED),
        SetRetained(RETAINED),
        AddDuplicateId("queue://orders", "dup-1", 1),
    )
    for sequence in range(1, 43):
        lists = {21: (2, 3), 22: (3,)}.get(sequence, (1,))
        await write(AddMessage(sequence, message(sequence), lists))
    await write(PutInflight(INFLIGHT))
    for row in ROWS:
        await write(Acknowledge(1, (row,), (1000 + row,), 2000, "client", "sub", "stomp", "ann"))
    await write(AddMessage(50, message(50), (5,)), PutBranch(BRANCH))
    for sequence, size in zip(range(51, 56), (300, 300, 300, 3000, 3000), strict=True):
        await write(AddMessage(sequence, message(sequence, size, "queue://split"), (4,)))
    bodies = store.capabilities.large_bodies
    assert bodies is not None
    large = await bodies.create(5000).finish(b"L" * 5000)
    header = (("n", "60"),)
    await write(AddMessage(60, Message("queue://orders", b"", header, 5, large=large), (1,)))
    copy = killed(directory, directory.parent / "killed")
    await store.release_acknowledged(RELEASED)
    return copy


async def write_golden(where: Path) -> None:
    """``where/killed`` and ``where/closed``."""
    store = opened_store(where / "closed")
    await store.open()
    await fill(store, where / "closed")
    await store.close()
    for how in ("killed", "closed"):
        (where / how / "journal" / "reserve").unlink(missing_ok=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        asyncio.run(write_golden(where))
        GOLDEN.parent.mkdir(exist_ok=True)
        with tarfile.open(GOLDEN, "w:xz") as archive:
            for how in ("killed", "closed"):
                archive.add(where / how, how)
        shutil.rmtree(where / "closed")


if __name__ == "__main__":
    main()
