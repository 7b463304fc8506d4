"""Who may write: a lease row with a fencing token, on the database's clock.

The master renews its lease; a standby polls it and takes it when it has expired. Taking it raises
the token, and every transaction of the store checks the token first: a master that was suspended
and resumes finds a higher token and writes nothing, whatever its clock says. The lock keeps no
transaction open, so it never blocks the database's own clean-up.

A killed gateway leaves a lease that has not expired. If its owner was a process of this machine
that no longer exists, the lease is taken at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.spi import StoreIOError, StoreLockedError
from tidegate.spi.machine.lease import now
from tidegate.spi.machine.owners import describe, is_gone
from tidegate_store_jdbc.database.adapter import Adapter, DatabaseError, DatabaseUnavailableError

logger = logging.getLogger("tidegate.store.jdbc")

#: A standby polls the lease at least this often, in seconds.
_LOOK_MAX: Final = 1.0
#: Pause between attempts to reach a database that is not there yet at start, in seconds.
FAIL_SECONDS: Final = 0.25


class LockRow(msgspec.Struct, frozen=True):
    """The row of the lock table; times in milliseconds on the database's clock."""

    owner: str
    fencing_token: int
    expires_at: int
    now: int
    batch: int
    last_sequence: int
    last_list: int
    ack_last: int
    ack_released: int


async def read_lock(adapter: Adapter) -> LockRow:
    """The row as it is now. Raises: DatabaseError; StoreIOError when it is missing."""
    rows = await adapter.control("find_lock_statement", (), fetch=True)
    if not rows:
        raise StoreIOError("the lock table has no row; was it emptied by hand?")
    owner, *numbers = rows[0]
    return LockRow(str(owner), *(int(number) for number in numbers))


class Lease:
    """The lock as one gateway sees it.

    Args:
        waits: whether to stand by while another gateway holds it.
        duration, renew_period: seconds. *duration* 0: take the lock whoever has it, and do not
            renew it (``use_database_lock = false``).
        on_lost: called once when another gateway has taken the lock.
        on_unreachable: called with the problem when a renewal failed.
    """

    def __init__(
        self,
        adapter: Adapter,
        owner: str,
        *,
        waits: bool,
        duration: float,
        renew_period: float,
        on_lost: Callable[[str], None],
        on_unreachable: Callable[[str], None],
    ) -> None:
        self._adapter = adapter
        self._owner = owner
        self._waits = waits
        self._duration_ms = int(duration * 1000)
        self._renew_period = renew_period
        self._on_lost = on_lost
        self._on_unreachable = on_unreachable
        self._task: asyncio.Task[None] | None = None
        self.token = 0
        self._sure_until = 0.0

    @property
    def is_sure(self) -> bool:
        """Whether no other gateway can have taken the lock, by this machine's clock alone.

        That clock keeps running while the process or the machine is suspended.
        """
        return not self._duration_ms or now() < self._sure_until

    async def acquire(self, on_wait: Callable[[str], None]) -> LockRow:
        """Take the lock, now or once its owner is gone. *on_wait*: see ``StoreContext.stands_by``.

        Returns: the row as it was found. Raises: StoreLockedError; DatabaseError.
        """
        told = ""
        while True:
            try:
                row = await read_lock(self._adapter)
                if self._may_take(row):
                    if await self._take(row):
                        if told:
                            on_wait("")
                        self._start_renewing()
                        return row
                    continue  # another was faster, or the owner renewed: look again
            except DatabaseUnavailableError as error:
                if not self._waits:
                    raise
                logger.warning("standby: the database is not reachable: %s", error)
                await asyncio.sleep(_LOOK_MAX)
                continue
            if not self._waits:
                raise StoreLockedError(
                    f"the store belongs to {describe(row.owner)} for another "
                    f"{(row.expires_at - row.now) / 1000:.1f} s at least; stop that gateway, or "
                    "set lock_policy = 'wait' to stand by",
                    owner=describe(row.owner),
                )
            if row.owner != told:
                told = row.owner
                logger.info("standby: waiting for the lock of owner=%s", describe(told))
                on_wait(describe(told))
            left = (row.expires_at - row.now) / 1000
            await asyncio.sleep(min(max(left, 0.01), self._renew_period, _LOOK_MAX))

    def _may_take(self, row: LockRow) -> bool:
        return not self._duration_ms or row.expires_at <= row.now or is_gone(row.owner)

    async def _take(self, row: LockRow) -> bool:
        """Compare and swap: fails when the row has changed since it was read."""
        parameters = (self._owner, self._duration_ms, row.fencing_token, row.expires_at)
        since = now()
        touched = await self._adapter.control("lock_create_statement", parameters, fetch=False)
        if touched:
            self.token = row.fencing_token + 1
            self._sure_until = since + self._duration_ms / 1000
        return bool(touched)

    def _start_renewing(self) -> None:
        if self._duration_ms:
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="jdbc-lease")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._renew_period)
            try:
                if not await self.renew():
                    return
            except DatabaseError as error:
                # Anyone who takes the lock meanwhile raises the token, so this is safe.
                logger.warning("the lease was not renewed: %s", error)
                if isinstance(error, DatabaseUnavailableError):
                    # Without traffic a gateway has no other way to notice.
                    self._on_unreachable(str(error))

    async def renew(self) -> bool:
        """Renew it now; False when another gateway has it. Raises: DatabaseError."""
        row = (self._duration_ms, self.token)
        since = now()
        touched = await self._adapter.control("lock_update_statement", row, fetch=False)
        if not touched:
            self._on_lost("another gateway has taken the store's lock")
        else:
            self._sure_until = since + self._duration_ms / 1000
        return bool(touched)

    async def release(self, *, is_reachable: bool = True) -> None:
        """Stop renewing, and end the lease when it is still ours. Never raises DatabaseError."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self.token and is_reachable:
            try:
                await self._adapter.control("lock_release_statement", (self.token,), fetch=False)
            except DatabaseError as error:
                logger.warning("the lease was not released, it ends by itself: %s", error)
        self.token = 0
