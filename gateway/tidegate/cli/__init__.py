"""The command ``tidegate``: thin over public functions of the host."""

from __future__ import annotations

from tidegate.cli._main import main

__all__ = ["main"]
