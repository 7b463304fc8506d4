"""The console: the files that a browser loads, and what they are allowed to do.

They are the same for everybody and reveal nothing about the gateway. What they show comes from the
API, with the user's own credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

#: Its path.
PREFIX: Final = "/console/"
_INDEX: Final = "index.html"
_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
#: No other origins, no inline code, no code from text: a message's body always stays text.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


def is_entrance(path: str) -> bool:
    """Whether other sites may link to *path*: it asks for nothing but the page itself."""
    return path in ("/", PREFIX)


def routes() -> list[Route]:
    """The console's routes, and the redirect to it."""
    folder = resources.files("tidegate_admin").joinpath("console")
    files = {name: (data, _TYPES[suffix]) for name, suffix, data in _read(folder)}

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["path"] or _INDEX)
        if found is None:
            raise HTTPException(404)
        headers = {"Content-Security-Policy": _POLICY}
        return Response(found[0], headers=headers, media_type=found[1])

    async def entrance(_: Request) -> Response:
        return RedirectResponse(PREFIX)

    return [
        Route("/", entrance),
        Route(PREFIX.rstrip("/"), entrance),
        Route(PREFIX + "{path:path}", file),
    ]


def _read(folder: Traversable, prefix: str = "") -> list[tuple[str, str, bytes]]:
    """Path, suffix and content of each file in *folder*; few and small, so all stay in memory."""
    found: list[tuple[str, str, bytes]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _read(item, f"{prefix}{item.name}/")
            continue
        suffix = f".{item.name.rpartition('.')[2]}"
        if suffix in _TYPES:
            found.append((prefix + item.name, suffix, item.read_bytes()))
    return found
