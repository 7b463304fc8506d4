"""What one scrape asks the gateway for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from starlette.responses import Response

from tidegate.spi.clients.operators import Phase, Readiness
from tidegate.spi.operate import (
    PAGE_MAX,
    BridgePage,
    BridgeRow,
    DestinationPage,
    DestinationSort,
    ListBridges,
    ListDestinations,
    ListSinks,
    Overview,
    ShowOverview,
    SinkList,
)
from tidegate_admin import _protocol as protocol
from tidegate_admin.server.answers import answered
from tidegate_admin.server.link import Link
from tidegate_admin.server.metrics._exposition import exposition
from tidegate_admin.server.metrics._seen import Part, Seen

T = TypeVar("T")

#: How long the gateway may take to report its state, in seconds.
_PATIENCE_S: Final = 1.0
#: How long each part may take: below the 10 s that Prometheus waits for all of them.
_PART_S: Final = 5.0
#: Kinds of errors that refuse the caller: the answer shows nothing then.
_REFUSALS: Final = frozenset({protocol.LOGIN, "AccessError"})


@dataclass(frozen=True, slots=True)
class Shown:
    """Which destinations have series of their own: see the options ``metrics_…``."""

    destinations_max: int
    sort: DestinationSort
    match: str


class _RefusedError(Exception):
    """Attributes: answer: the gateway's, with its error."""

    def __init__(self, answer: protocol.Answer) -> None:
        super().__init__(answer.problem)
        self.answer = answer


async def metrics(
    link: Link, peer: str, credentials: protocol.Credentials, accept: str, shown: Shown
) -> Response:
    """The exposition; for a gateway that is not running, only its state."""
    # Checks the caller before anything else, and asks for the gateway's state meanwhile.
    answer, ready = await asyncio.gather(link.ask(peer, credentials), link.readiness(_PATIENCE_S))
    if answer.kind:
        return answered(answer)
    if ready is None:
        last = link.last_readiness or Readiness(Phase.RECOVERING)
        ready = msgspec.structs.replace(last, problems=(*last.problems, "it does not answer"))
    seen = Seen(ready)
    if ready.phase is Phase.RUNNING:
        try:
            seen = await _asked(ready, link, peer, credentials, shown)
        except _RefusedError as error:
            return answered(error.answer)
    text, kind = exposition(seen, accept)
    return Response(text, 200, {"Content-Type": kind})


async def _asked(
    ready: Readiness, link: Link, peer: str, credentials: protocol.Credentials, shown: Shown
) -> Seen:
    """Raises: _RefusedError when the caller may not ask."""
    missing: set[Part] = set()

    async def ask(part: Part, request: msgspec.Struct, kind: type[T]) -> T | None:
        try:
            async with asyncio.timeout(_PART_S):
                answer = await link.ask(peer, credentials, msgspec.json.encode(request))
        except TimeoutError:
            missing.add(part)
            return None
        if answer.kind in _REFUSALS:
            raise _RefusedError(answer)
        if answer.kind:
            missing.add(part)
            return None
        return msgspec.json.decode(answer.body, type=kind)

    listed = ListDestinations(
        shown.match, shown.sort, limit=max(1, shown.destinations_max), with_totals=True
    )

    async def ask_bridges() -> tuple[BridgeRow, ...] | None:
        """All rules: they come from the configuration, and are few."""
        rows: list[BridgeRow] = []
        after = ""
        while True:
            found = await ask(Part.BRIDGES, ListBridges(after=after, limit=PAGE_MAX), BridgePage)
            if found is None:
                return None
            rows += found.rows
            after = found.next
            if not after:
                return tuple(rows)

    overview, page, sinks, bridges = await asyncio.gather(
        ask(Part.OVERVIEW, ShowOverview(), Overview),
        ask(Part.DESTINATIONS, listed, DestinationPage),
        ask(Part.SINKS, ListSinks(), SinkList),
        ask_bridges(),
    )
    if page is not None:
        page = msgspec.structs.replace(page, rows=page.rows[: shown.destinations_max])
    return Seen(ready, overview, page, sinks, bridges, frozenset(missing))
