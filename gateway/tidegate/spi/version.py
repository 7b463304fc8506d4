"""The version of the plugin contract.

A plugin states the version it was written for in its :class:`~tidegate.spi.hookspecs.PluginInfo`.
The major numbers must be equal and the host's minor number must not be smaller than the plugin's;
anything else is refused at start with an error that names the plugin.
"""

from __future__ import annotations

from typing import Final

SPI_VERSION: Final = (1, 0)


def is_supported(wanted: tuple[int, int]) -> bool:
    """Tell whether this host can run a plugin written for SPI version *wanted*."""
    return wanted[0] == SPI_VERSION[0] and wanted[1] <= SPI_VERSION[1]
