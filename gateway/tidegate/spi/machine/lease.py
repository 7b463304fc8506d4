"""What leases of all kinds share: the words of their options, and the clock of who holds one."""

from __future__ import annotations

import time
from typing import Final

from tidegate.spi.errors import ConfigError

#: What to do at start when another gateway owns the store.
AUTO: Final = "auto"
WAIT: Final = "wait"
FAIL: Final = "fail"

#: Goes on while the machine sleeps, where there is such a clock.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds; goes on while this process or the machine is stopped."""
    return time.clock_gettime(_CLOCK)


def check_lease(renew_period: float, expiration: float) -> None:
    """``lock_renew_period`` and ``lock_expiration`` go together. Raises: ConfigError."""
    if renew_period * 2 > expiration:
        raise ConfigError(
            f"{renew_period:g} s is more than half of lock_expiration ({expiration:g} "
            "s): a single slow renewal would lose the lock",
            key="lock_renew_period",
        )
