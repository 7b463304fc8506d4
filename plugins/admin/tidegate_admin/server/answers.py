"""Answers as JSON, and the HTTP status of each kind of error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

from tidegate_admin import _protocol as protocol

JSON: Final = "application/json"
#: Status by the kind of the gateway's error; others are 500.
STATUS: Final[Mapping[str, int]] = {
    protocol.LOGIN: 401,
    "AccessError": 403,
    "RequestError": 400,
    "FlowControlError": 429,
    "QuotaError": 429,
    "StoreClosedError": 503,
    "StoreFullError": 503,
    "StoreUnavailableError": 503,
    "StoreIOError": 503,
    "StoreError": 503,
}
_CHALLENGE: Final = 'Bearer, Basic realm="tidegate", charset="UTF-8"'


class Problem(msgspec.Struct, frozen=True):
    """Why there is no answer.

    Attributes: kind: of the error, for scripts; problem: in words.
    """

    kind: str
    problem: str


def json(body: bytes, status: int = 200) -> Response:
    """An answer that is JSON already."""
    return Response(body, status, media_type=JSON)


def problem(
    status: int, kind: str, text: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error."""
    more = dict(headers or {})
    if status == 401:
        more["WWW-Authenticate"] = _CHALLENGE
    if status in (429, 503):
        more["Retry-After"] = "1"
    return Response(msgspec.json.encode(Problem(kind, text)), status, more, JSON)


def answered(answer: protocol.Answer) -> Response:
    """What the gateway answered."""
    if answer.kind:
        return problem(STATUS.get(answer.kind, 500), answer.kind, answer.problem)
    return json(bytes(answer.body))
