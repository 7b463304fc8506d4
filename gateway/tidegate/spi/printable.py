"""Makes clients' text safe to show on a terminal or in a log: it is only read, nothing in it acts.

A client chooses names, ids and bodies freely, including ANSI escapes: those move the cursor, rename
the window, or make a line show something other than it contains.
"""

from __future__ import annotations

from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """*text* on one line; unprintable characters are escaped as in a Python string.

    These are control characters, line and paragraph separators, and characters that change the writing
    direction (``str.isprintable``).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _SHORT.get(c) or _code(ord(c)) for c in text)


def printable_lines(text: str) -> str:
    """Like :func:`printable`, but line feeds and tabs are kept."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """JSON *text* with unprintable characters in its strings escaped as JSON does."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _json_code(c) for c in text)


def _code(point: int) -> str:
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _json_code(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
