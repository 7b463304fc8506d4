"""What an outgoing rule has in flight, with running totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidegate.spi import Message, body_bytes


class InFlight:
    """Messages by sequence, with their subscription's key. Attributes: size: bytes of bodies."""

    def __init__(self) -> None:
        self.size = 0
        self._found: dict[int, tuple[str, Message]] = {}
        self._of_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def has_key(self, key: str) -> bool:
        """Whether a message of *key* is in flight."""
        return key in self._of_key

    def get(self, number: int) -> tuple[str, Message] | None:
        """Key and message."""
        return self._found.get(number)

    def add(self, number: int, key: str, message: Message) -> None:
        """Add a message that is not there yet."""
        assert number not in self._found
        self._found[number] = key, message
        self._of_key[key] += 1
        self.size += body_bytes(message)

    def pop(self, number: int) -> tuple[str, Message] | None:
        """Remove and return a message; None: it was not there."""
        found = self._found.pop(number, None)
        if found is not None:
            key, message = found
            self.size -= body_bytes(message)
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]
        return found

    def clear(self) -> None:
        """Remove everything."""
        self._found.clear()
        self._of_key.clear()
        self.size = 0
