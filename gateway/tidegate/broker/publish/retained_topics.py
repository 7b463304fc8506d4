"""The topics whose retained messages one subscription has yet to get."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Protocol

from tidegate.broker.route.retained import RetainedMessages
from tidegate.spi import names


class Topics(Protocol):
    """By their numbers, in ascending order; some may be left out."""

    def is_to_come(self, number: int) -> bool:
        """Its turn has not come yet, and it is not left out."""
        ...

    def leave_out(self, number: int) -> None:
        """Its turn never comes, if it has not come yet."""
        ...

    def next(self) -> int | None:
        """The next one, or what must be examined next; None: there are no more."""
        ...

    def advance(self) -> None:
        """The next one had its turn."""
        ...

    def has_more(self) -> bool:
        """There may be more."""
        ...

    def covers(self, destination: str) -> bool:
        """*destination*, which was examined, is one of them."""
        ...


class FewTopics:
    """*numbers* in ascending order, four bytes each, found when the subscription was made."""

    def __init__(self, numbers: array[int]) -> None:
        self._numbers = numbers
        self._position = 0
        self._left_out: set[int] = set()  # at or behind the position

    def is_to_come(self, number: int) -> bool:
        numbers = self._numbers
        index = bisect_left(numbers, number, self._position)
        return index < len(numbers) and numbers[index] == number and number not in self._left_out

    def leave_out(self, number: int) -> None:
        if self.is_to_come(number):
            self._left_out.add(number)

    def next(self) -> int | None:
        numbers, left_out = self._numbers, self._left_out
        while self._position < len(numbers):
            number = numbers[self._position]
            if number not in left_out:
                return number
            left_out.discard(number)
            self._position += 1
        return None

    def advance(self) -> None:
        self._position += 1

    def has_more(self) -> bool:
        return self._position < len(self._numbers)

    def covers(self, destination: str) -> bool:
        del destination
        return True


class ManyTopics:
    """Finding them would take long: all topics are examined, in the order of their numbers.

    A topic that gets its first retained message later is not included: see :meth:`leave_out`.
    """

    def __init__(self, retained: RetainedMessages, filter_name: str) -> None:
        self._retained = retained
        self._filter = filter_name
        self._end = retained.numbers_end
        self._position = 0
        self._left_out: set[int] = set()  # at or behind the position

    def is_to_come(self, number: int) -> bool:
        if not self._position <= number < self._end or number in self._left_out:
            return False
        message = self._retained.at(number)
        return message is not None and self.covers(message.destination)

    def leave_out(self, number: int) -> None:
        if self._position <= number < self._end:
            self._left_out.add(number)

    def next(self) -> int | None:
        while self._position in self._left_out:
            self._left_out.discard(self._position)
            self._position += 1
        return self._position if self._position < self._end else None

    def advance(self) -> None:
        self._position += 1

    def has_more(self) -> bool:
        return self._position < self._end

    def covers(self, destination: str) -> bool:
        return names.matches(self._filter, names.name_of(destination))
