"""Entry point ``store-journaled`` of the group ``tidegate.plugins``."""

from __future__ import annotations

from tidegate.spi import MessageStore, MessageStoreFactory, PluginInfo, StoreContext, hookimpl
from tidegate_store_jdbc import JdbcStore
from tidegate_store_journaled._options import (
    JournaledOptions,
    check_journal,
    check_store_limit,
)
from tidegate_store_journaled._store import JournaledStore

tidegate_plugin = PluginInfo(
    summary="SQL store with the journal in front: only what survives a checkpoint is written",
    spi_version=(1, 0),
)


class JournaledStoreFactory:
    """Makes journaled SQL stores; plain ones with ``use_journal = false``."""

    @property
    def options_type(self) -> type:
        """See MessageStoreFactory."""
        return JournaledOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        """See MessageStoreFactory."""
        if not isinstance(options, JournaledOptions):
            raise TypeError(f"expected JournaledOptions, got {type(options).__name__}")
        check_journal(options)
        if not options.use_journal:
            return JdbcStore(context, options)
        check_store_limit(options, context.store_limit)
        return JournaledStore(context, options)


@hookimpl
def register_message_store() -> MessageStoreFactory:
    """Called by the host when ``[store] plugin = "journaled"``."""
    return JournaledStoreFactory()
