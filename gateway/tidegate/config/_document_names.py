"""Names that the documents use for options, and their spellings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from tidegate.config._policy_effect import Lists, lists_of

#: An option, and its value as a file would give it.
Given: TypeAlias = tuple[str, object]


def _no_values() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DocumentName:
    """Attributes:
    written: its names in the documents; each is accepted in snake_case as well.
    options: the options it may stand for, those of queues where subscriptions have their own.
    read: converts its value, in the table where it stands, to options. Raises: ValueError.
    values: maps the document's values to ours; {} for numbers and sizes.
    """

    written: tuple[str, ...]
    options: tuple[str, ...]
    read: Callable[[object, Written], Iterable[Given]]
    values: Mapping[str, str] = field(default_factory=_no_values)


@dataclass(frozen=True, slots=True)
class Written:
    """A table in which each document's name has its first spelling."""

    table: Mapping[str, object]

    def both(self, option: str) -> list[str]:
        """*option*, which is for queues, and its counterpart for durable subscriptions, if the table can have them."""
        match = self.table.get("match")
        has = lists_of(match) if isinstance(match, str) else frozenset(Lists)
        names = {Lists.QUEUE: option, Lists.DURABLE: f"subscription_{option}"}
        return [name for lists, name in names.items() if lists in has]


def snake_case(name: str) -> str:
    """``pendingQueuePolicy`` and ``page-size-bytes`` in our spelling."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()
