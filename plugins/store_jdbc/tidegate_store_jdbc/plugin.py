"""Entry point ``store-jdbc`` of the group ``tidegate.plugins``."""

from __future__ import annotations

from tidegate.spi import MessageStore, MessageStoreFactory, PluginInfo, StoreContext, hookimpl
from tidegate_store_jdbc._options import JdbcOptions, check
from tidegate_store_jdbc._store import JdbcStore

tidegate_plugin = PluginInfo(
    summary="SQL store: SQLite (embedded) and PostgreSQL, lease lock with fencing",
    spi_version=(1, 0),
)


class JdbcStoreFactory:
    """Makes SQL stores."""

    @property
    def options_type(self) -> type:
        """See MessageStoreFactory."""
        return JdbcOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        """See MessageStoreFactory."""
        if not isinstance(options, JdbcOptions):
            raise TypeError(f"expected JdbcOptions, got {type(options).__name__}")
        check(options)
        return JdbcStore(context, options)


@hookimpl
def register_message_store() -> MessageStoreFactory:
    """Called by the host when ``[store] plugin = "jdbc"``."""
    return JdbcStoreFactory()
