"""What a client is told when something is refused. STOMP 1.2 "ERROR"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidegate.spi import GatewayError
from tidegate_protocols.stomp._handshake import SUPPORTED, NoCommonVersionError
from tidegate_protocols.stomp.codec.encoder import encode_error
from tidegate_protocols.stomp.codec.frames import Frame, Version

#: Characters of the ``message`` header ("a short description"); the body has the full text.
_MESSAGE_MAX: Final = 200
#: Header lines shown of the offending frame, and characters of each.
_LINES_SHOWN: Final = 20
_LINE_SHOWN_MAX: Final = 200
_SECRETS: Final = frozenset({"passcode", "password"})


def error_frame(
    error: GatewayError, version: Version, *, frame: Frame | None, receipt: str | None
) -> bytes:
    """The ERROR frame for *error*.

    Args: frame: the refused frame, if known; receipt: of the refused operation.
    """
    reason = error.for_client
    body = reason if frame is None else f"{reason}\n-----\n{_shown(frame)}\n-----"
    headers: Mapping[str, str] = (
        {"version": SUPPORTED} if isinstance(error, NoCommonVersionError) else {}
    )
    short = reason.partition("\n")[0][:_MESSAGE_MAX]
    return encode_error(short, body, version, receipt=receipt, headers=headers)


def _shown(frame: Frame) -> str:
    """The frame's head, without its body and without secrets."""
    lines = [frame.command]
    pairs = frame.pairs or tuple(frame.headers.items())
    for name, value in pairs[:_LINES_SHOWN]:
        shown = "(not shown)" if name.strip().lower() in _SECRETS else value[:_LINE_SHOWN_MAX]
        lines.append(f"{name[:_LINE_SHOWN_MAX]}:{shown}")
    if len(pairs) > _LINES_SHOWN:
        lines.append(f"({len(pairs) - _LINES_SHOWN} more)")
    if frame.body:
        lines.append(f"(body of {len(frame.body)} bytes)")
    return "\n".join(lines)
