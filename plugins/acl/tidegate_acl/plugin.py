"""Entry point ``extension-acl``: makes ``plugin = "acl"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_acl._extension import Acl, AclOptions

tidegate_plugin = PluginInfo(
    summary="who may do what: rules in a file, and an audit log",
    spi_version=(1, 0),
)


class AclFactory:
    """Makes the authorizer."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return AclOptions

    def create(self, options: object) -> Acl:
        """See ExtensionFactory. Reads the file, so that ``tidegate check-config`` checks it."""
        if not isinstance(options, AclOptions):
            raise TypeError(f"expected AclOptions, got {type(options).__name__}")
        return Acl(options)


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``acl``."""
    return AclFactory()
