"""Entry point ``cursor-store``: makes ``cursor = "store"`` known to the host."""

from __future__ import annotations

from tidegate.spi import CursorFactory, PluginInfo, hookimpl
from tidegate_cursors._store_cursor import StoreCursorFactory

tidegate_plugin = PluginInfo(
    summary="the store cursor: memory while consumers keep up, paging from the store when not",
    spi_version=(1, 0),
)


@hookimpl
def register_cursor() -> CursorFactory:
    """Return the factory of store cursors."""
    return StoreCursorFactory()
