"""What all kinds of lease share: the words of their options, and the clock of the holder."""

from __future__ import annotations

import time
from typing import Final

from tidegate.spi.errors import ConfigError

#: What to do at start when another gateway owns the store.
AUTO: Final = "auto"
WAIT: Final = "wait"
FAIL: Final = "fail"

#: A clock that also runs while the machine sleeps, where there is one.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds, monotonic; also runs while this process or the machine is suspended."""
    return time.clock_gettime(_CLOCK)


def check_lease(renew_period: float, expiration: float) -> None:
    """Check that ``lock_renew_period`` and ``lock_expiration`` go together. Raises: ConfigError."""
    if renew_period * 2 > expiration:
        raise ConfigError(
            f"{renew_period:g} s is more than half of lock_expiration ({expiration:g} "
            "s): a single slow renewal would lose the lock",
            key="lock_renew_period",
        )
