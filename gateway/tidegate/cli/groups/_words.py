"""Figures as people read them."""

from __future__ import annotations

from typing import Final

from tidegate.spi.operate import Room

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Bytes, with three digits or a little more."""
    amount, unit = float(count), 0
    while abs(amount) >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def sized(room: Room) -> str:
    """Bytes of something, and how many there may be."""
    return _of(room, size(room.used), size(room.limit))


def counted(room: Room) -> str:
    """So many of something, and how many there may be."""
    return _of(room, str(room.used), str(room.limit))


def _of(room: Room, used: str, limit: str) -> str:
    return f"{used} of {limit} ({room.used / room.limit:.0%})" if room.limit else used


def duration(seconds: float) -> str:
    """How long something has lasted."""
    left, words = int(seconds), list[str]()
    for name, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if left >= length:
            words.append(f"{left // length} {name}")
            left %= length
    return " ".join([*words[:2], f"{left} s"] if len(words) < 2 else words[:2])
