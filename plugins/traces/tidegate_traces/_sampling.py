"""Which messages are traced: a share of those without a context, at a limited rate."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable


class Gaps:
    """Samples with a fixed probability: draws how many items to skip before the next pick.

    Items not picked cost nothing: a whole turn of them is one subtraction.

    Args: ratio: the probability, 0 to 1.
    """

    __slots__ = ("_divisor", "_random", "_ratio", "left")

    def __init__(self, ratio: float, random_: Callable[[], float] = random.random) -> None:
        self._ratio = ratio
        self._random = random_
        self._divisor = math.log1p(-ratio) if 0 < ratio < 1 else 0.0
        self.left: float = 0
        self.next()

    def next(self) -> None:
        """One was picked: set *left*, the number to skip before the next."""
        if self._ratio <= 0:
            self.left = math.inf
        elif self._ratio >= 1:
            self.left = 0
        else:  # geometric distribution, by inversion; 1 - random() is above 0
            self.left = int(math.log(1.0 - self._random()) / self._divisor)


class RateCap:
    """A rate limit with bursts of one second's worth. Args: rate: per second."""

    __slots__ = ("_at", "_clock", "_rate", "_room")

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._room = float(rate)
        self._at = clock()

    def takes(self) -> bool:
        """Take one if there is room. Returns: whether there was."""
        if self._room < 1:
            now = self._clock()
            self._room = min(self._rate, self._room + (now - self._at) * self._rate)
            self._at = now
            if self._room < 1:
                return False
        self._room -= 1
        return True
