"""Text of clients on its way to a terminal or a log: nothing in it acts, it is only read.

A client chooses names, ids and bodies freely, ANSI escapes among them: those move the cursor, rename
the window, or let a line say something else than it holds.
"""

from __future__ import annotations

from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """*text* on one line: what is not printable is escaped as Python writes it in a string.

    That is every control character, line and paragraph separators, and those that turn the direction
    of writing (``str.isprintable``).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _SHORT.get(c) or _code(ord(c)) for c in text)


def printable_lines(text: str) -> str:
    """As :func:`printable`, but line feeds and tabs stay what they are."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """JSON *text*, whose strings may hold what is not printable, with that escaped as JSON does."""
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
