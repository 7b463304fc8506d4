"""Entry point ``cursor-file``: makes ``cursor = "file"`` known to the host."""

from __future__ import annotations

from tidegate.spi import CursorFactory, PluginInfo, hookimpl
from tidegate_cursors._file_cursor import FileCursorFactory

tidegate_plugin = PluginInfo(
    summary="the file cursor: memory up to the limit, then a temporary spool file",
    spi_version=(1, 0),
)


@hookimpl
def register_cursor() -> CursorFactory:
    """Return the factory of file cursors."""
    return FileCursorFactory()
