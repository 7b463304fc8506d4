"""What all requests of operators share: pages, counts, and how long they may take."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import NUMBER_MAX

#: Rows of one page at most.
PAGE_MAX: Final = 1000

#: How long one request goes on at most, in seconds; then its answer says how far it came.
WORK_S: Final = 10.0

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: Numbers of messages that were chosen one by one.
Sequences: TypeAlias = Annotated[tuple[Count, ...], msgspec.Meta(max_length=PAGE_MAX)]
