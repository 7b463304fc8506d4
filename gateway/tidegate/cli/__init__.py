"""The command ``tidegate``: thin over public functions of the host."""

from __future__ import annotations

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments* (default: the process's); returns the exit code."""
    # Nothing that is imported is garbage, and the collector would look through it again and again:
    # a fifth of the time. A gateway has it back with what it has imported, other commands sooner.
    gc.disable()
    try:
        from tidegate.cli._main import main as carried_out

        return carried_out(arguments)
    finally:
        gc.enable()
