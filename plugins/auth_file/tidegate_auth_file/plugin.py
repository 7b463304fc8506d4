"""Entry point ``extension-auth-file``: makes ``plugin = "auth-file"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_auth_file._authenticator import ScramAuthenticator, ScramOptions

tidegate_plugin = PluginInfo(
    summary="users with passwords in a file: SCRAM-SHA-256, SCRAM-SHA-512 and plain",
    spi_version=(1, 0),
)


class ScramFactory:
    """Makes the authenticator."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return ScramOptions

    def create(self, options: object) -> ScramAuthenticator:
        """See ExtensionFactory. Reads the file, so that ``tidegate check-config`` checks it."""
        if not isinstance(options, ScramOptions):
            raise TypeError(f"expected ScramOptions, got {type(options).__name__}")
        return ScramAuthenticator(options)


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``scram``."""
    return ScramFactory()
