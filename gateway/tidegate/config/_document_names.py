"""What a name of the documents is, and how it is spelt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from tidegate.config._policy_effect import Lists, lists_of

#: An option, and what a file would give for it.
Given: TypeAlias = tuple[str, object]


def _no_values() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DocumentName:
    """Attributes:
    written: its names in the documents; each is accepted in snake_case as well.
    options: those that it may be another name of, for queues where subscriptions have their own.
    read: makes options of its value and the table in which it stands. Raises: ValueError.
    values: by a value as a document has it, ours; {} for numbers and sizes.
    """

    written: tuple[str, ...]
    options: tuple[str, ...]
    read: Callable[[object, Written], Iterable[Given]]
    values: Mapping[str, str] = field(default_factory=_no_values)


@dataclass(frozen=True, slots=True)
class Written:
    """A table, in which each document's name has its first spelling."""

    table: Mapping[str, object]

    def both(self, option: str) -> list[str]:
        """*option*, which is for queues, and that for durable subscriptions: those that it can have."""
        match = self.table.get("match")
        has = lists_of(match) if isinstance(match, str) else frozenset(Lists)
        names = {Lists.QUEUE: option, Lists.DURABLE: f"subscription_{option}"}
        return [name for lists, name in names.items() if lists in has]


def snake_case(name: str) -> str:
    """``pendingQueuePolicy`` and ``page-size-bytes`` as we would write them."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
