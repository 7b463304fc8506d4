"""Entry point ``extension-auth-jwt``: makes ``plugin = "auth-jwt"`` of ``[[extensions]]`` known."""

from __future__ import annotations

from tidegate.spi import ExtensionFactory, PluginInfo, hookimpl
from tidegate_auth_jwt._authenticator import JwtAuthenticator, JwtOptions

tidegate_plugin = PluginInfo(
    summary="JSON Web Tokens in the place of the password, keys from a JWKS file",
    spi_version=(1, 0),
)


class JwtFactory:
    """Makes the authenticator."""

    @property
    def options_type(self) -> type:
        """See ExtensionFactory."""
        return JwtOptions

    def create(self, options: object) -> JwtAuthenticator:
        """See ExtensionFactory. Reads the keys, so that ``tidegate check-config`` checks them."""
        if not isinstance(options, JwtOptions):
            raise TypeError(f"expected JwtOptions, got {type(options).__name__}")
        return JwtAuthenticator(options)


@hookimpl
def register_extension() -> ExtensionFactory:
    """Called by the host when an ``[[extensions]]`` names ``auth-jwt``."""
    return JwtFactory()
