"""The command ``tidegate``: thin over public functions of the host."""

from __future__ import annotations

import gc
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments* (default: the process's); returns the exit code."""
    # Nothing that is imported is garbage, but the collector would scan it again and again: a fifth
    # of the time. A gateway turns it on again after its imports, other commands earlier.
    gc.disable()
    try:
        from tidegate.cli._main import main as carried_out

        return carried_out(arguments)
    finally:
        gc.enable()
