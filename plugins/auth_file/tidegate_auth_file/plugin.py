"""Entry point ``extension-auth-file``: makes ``plugin = "auth-file"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_auth_file._authenticator import AuthFileOptions, FileAuthenticator

tidegate_plugin = PluginInfo(
    summary="users in a file: argon2id, SCRAM-SHA-256 and SCRAM-SHA-512, hashes of other programs",
    spi_version=(1, 0),
)


class AuthFileFactory:
    """Makes the authenticator."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return AuthFileOptions

    def create(self, options: object) -> FileAuthenticator:
        """See ExtensionFactory. Reads the file, so that ``tidegate check-config`` checks it."""
        if not isinstance(options, AuthFileOptions):
            raise TypeError(f"expected AuthFileOptions, got {type(options).__name__}")
        return FileAuthenticator(options)


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``auth-file``."""
    return AuthFileFactory()
