"""Entry point ``store-journal`` of the group ``tidegate.plugins``."""

from __future__ import annotations

from tidegate.spi import MessageStore, MessageStoreFactory, PluginInfo, StoreContext, hookimpl
from tidegate_store_journal.checks import check_store_limit, idle_without_files, refuse_idle
from tidegate_store_journal.options import JournalOptions
from tidegate_store_journal.store import JournalStore

tidegate_plugin = PluginInfo(
    summary="append-only journal: data files, in-memory index, checkpoints in LMDB",
    spi_version=(1, 0),
)


class JournalStoreFactory:
    """Makes journal stores."""

    @property
    def options_type(self) -> type:
        """See MessageStoreFactory."""
        return JournalOptions

    def create(self, context: StoreContext, options: object) -> MessageStore:
        """See MessageStoreFactory."""
        if not isinstance(options, JournalOptions):
            raise TypeError(f"expected JournalOptions, got {type(options).__name__}")
        if not context.persistent:
            return JournalStore(context, options, ignored=idle_without_files(options))
        refuse_idle(options)
        check_store_limit(options, context.store_limit)
        return JournalStore(context, options)


@hookimpl
def register_message_store() -> MessageStoreFactory:
    """Called by the host when ``[store] plugin = "journal"``."""
    return JournalStoreFactory()
