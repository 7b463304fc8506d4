"""Whether the store has room, and the error that publishes are refused with while it has none.

Two find out: the writer, when the store says that a batch does not fit, and the watch on the disk
(:mod:`tidegate.broker.limits.disk`), before that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from tidegate.spi import StoreError, StoreFullError, StoreUnavailableError
from tidegate.spi.events import Event, Tell

_log = logging.getLogger("tidegate.broker.writer")

#: After the store said it is full, publishes are refused this long before one may try again.
FULL_BACK_OFF_S: Final = 1.0


class Shortage:
    """See the module.

    Attributes:
        refusal: while set, publishes, and nothing else, are refused with it.
        holds_last_room: what is left is for acknowledgements: dead letters wait where they are.
        until: publishes are refused until then (loop time), because the store had no room; kept
            until one is accepted again. 0: it has room.
    """

    __slots__ = ("_found", "_gives_up", "_is_told", "_loop", "holds_last_room", "refusal", "until")

    def __init__(self) -> None:
        self.refusal: StoreFullError | None = None
        self.holds_last_room = False
        self.until = 0.0
        self._found: StoreError = StoreFullError("the message store is full")
        self._is_told = False
        self._gives_up = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def current(self) -> StoreError | None:
        """What publishes are refused with at present; None: they are accepted."""
        if self.refusal is not None:
            return self.refusal
        return self._found if self.until and self._loop.time() < self.until else None

    @property
    def is_near(self) -> bool:
        """The store had no room a moment ago, or little is left: the gateway itself adds nothing for now."""
        return self.holds_last_room or self._loop.time() < self.until

    def check(self) -> None:
        """Raises: StoreError when publishes are refused; else one may try."""
        error = self.current()
        if error is not None:
            raise error
        self.until = 0.0

    def found(self, error: StoreError, tell: Tell) -> StoreError:
        """The store had no room for a batch. Returns: what the clients whose messages it had are told."""
        text = "store=short error=%r publishes_refused_for_s=%g"
        if self._is_told:
            _log.error(text, str(error), FULL_BACK_OFF_S)
        else:
            self._is_told = True
            tell(Event.STORE_SHORT, _log, text, str(error), FULL_BACK_OFF_S)
        self._lasts()
        if isinstance(error, StoreFullError):
            self._found = StoreFullError(f"the message store is full; try again later ({error})")
        else:
            self._found = StoreUnavailableError(
                f"the message store cannot write at the moment: {error}"
            )
        return self._found

    def is_over(self, tell: Tell) -> None:
        """The store had room for a batch."""
        if self._is_told and not self.is_near:
            self._is_told = False
            tell(Event.STORE_ROOM, _log, "store=enough: the store accepts messages again")

    def give_up(self) -> None:
        """Nobody waits for room from now on: the gateway stops."""
        self._gives_up.set()

    @property
    def is_given_up(self) -> bool:
        return self._gives_up.is_set()

    async def wait(self) -> None:
        """There is still no room: wait before the next try, unless :meth:`give_up` was called."""
        self._lasts()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FULL_BACK_OFF_S):
                await self._gives_up.wait()

    def _lasts(self) -> None:
        self.until = self._loop.time() + FULL_BACK_OFF_S
