"""Tidegate: a plugin-based STOMP and MQTT messaging gateway. Plugins import `tidegate.spi`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """``__version__``, only when asked for: other processes need not read the package's metadata."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # a source tree on the path without an installation
        return "0+unknown"
