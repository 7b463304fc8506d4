"""``/health/live`` and ``/health/ready``: the gateway's state, even when it cannot answer."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from tidegate.spi.clients.operators import Phase, Readiness
from tidegate_admin.server.answers import json
from tidegate_admin.server.link import Link

#: How long the gateway's event loop may take to report its state, in seconds.
_PATIENCE_S: Final = 1.0
#: A gateway silent for this long will not recover by itself: it should be restarted.
_DEAD_S: Final = 60.0


async def live(link: Link) -> Response:
    """Fails only for what a restart would fix: never for the store, never during recovery."""
    await link.readiness(_PATIENCE_S)
    silent = link.silent_s
    if silent > _DEAD_S:
        text = f"the gateway has not answered for {silent:.0f} s"
        return json(msgspec.json.encode({"status": text}), 503)
    return json(b'{"status":"live"}')


async def ready(link: Link) -> Response:
    """Whether clients are admitted and served, and if not, why."""
    found = await link.readiness(_PATIENCE_S)
    if found is None:
        last = link.last_readiness or Readiness(Phase.RECOVERING)
        text = f"the gateway has not answered for {link.silent_s:.1f} s"
        found = msgspec.structs.replace(last, problems=(*last.problems, text))
    body: dict[str, Any] = {"status": status_of(found), **msgspec.to_builtins(found)}
    return json(msgspec.json.encode(body), 200 if found.is_ready else 503)


def status_of(found: Readiness) -> str:
    """The state in a few words."""
    if found.phase is Phase.RUNNING:
        return "; ".join(found.problems) or "ready"
    share = "" if found.percent is None else f", {found.percent:.0f} %"
    step = f" ({found.what})" if found.what else ""
    return f"{found.phase.value}{share}{step}"
