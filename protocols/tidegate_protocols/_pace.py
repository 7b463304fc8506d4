"""Time that a client has: what both protocols need of the event loop for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Timer(Protocol):
    """Something that can be called off: a timer or a task."""

    def cancel(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Pace:
    """How long something that has begun may stand still.

    Attributes: timeout_s: 0: as long as it likes; call_later: of the event loop; is_paused: the
        client is not read now, so that nothing can come; pauses: how often that has begun so far.
    """

    timeout_s: float
    call_later: Callable[[float, Callable[[], None]], Timer]
    is_paused: Callable[[], bool]
    pauses: Callable[[], int]

    def look(self) -> int:
        """What :meth:`was_read_since` is to be asked with later."""
        return -1 if self.is_paused() else self.pauses()

    def was_read_since(self, look: int) -> bool:
        """Whether the client was read all the time since *look*: who is read again only now could not send before."""
        return look == self.look() >= 0
