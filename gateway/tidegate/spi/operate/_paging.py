"""What all operators' requests share: pages, counts, and how long they may take."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from tidegate.spi.messages import NUMBER_MAX

#: Most rows of one page.
PAGE_MAX: Final = 1000

#: Longest run of one request, in seconds; then its answer says how far it came.
WORK_S: Final = 10.0

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
#: Numbers of individually chosen messages.
Sequences: TypeAlias = Annotated[tuple[Count, ...], msgspec.Meta(max_length=PAGE_MAX)]
