"""Entry point ``cursor-vm``: makes ``cursor = "vm"`` known to the host."""

from __future__ import annotations

from tidegate.spi import CursorFactory, PluginInfo, hookimpl
from tidegate_cursors._vm_cursor import VmCursorFactory

tidegate_plugin = PluginInfo(
    summary="the vm cursor: all pending messages in memory, producers slowed at the limit",
    spi_version=(1, 0),
)


@hookimpl
def register_cursor() -> CursorFactory:
    """Return the factory of vm cursors."""
    return VmCursorFactory()
