"""Tidegate: a plugin-based STOMP and MQTT messaging gateway. Plugins import `tidegate.spi`."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tidegate")
except PackageNotFoundError:  # a source tree on the path without an installation
    __version__ = "0+unknown"

__all__ = ["__version__"]
