"""Time limits for a client: what both protocols need of the event loop for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Timer(Protocol):
    """Something that can be cancelled: a timer or a task."""

    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How long something that has begun may stall.

    Attributes: timeout_s: 0: no limit; call_later: the event loop's; is_paused: the client is not
        being read, so nothing can arrive; pauses: how often that has happened so far.
    """

    timeout_s: float
    call_later: Callable[[float, Callable[[], None]], Timer]
    is_paused: Callable[[], bool]
    pauses: Callable[[], int]

    def look(self) -> int:
        """A mark to pass to :meth:`was_read_since` later."""
        return -1 if self.is_paused() else self.pauses()

    def was_read_since(self, look: int) -> bool:
        """Whether the client was read without a pause since *look*, and so could send."""
        return look == self.look() >= 0
