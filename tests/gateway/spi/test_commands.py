"""A configured store makes stores that keep what a sink still waits for."""

from pathlib import Path
from typing import Any, cast

from tidegate.spi import ConfiguredStore
from tidegate.testing.memory_store import MemoryStoreOptions


def test_a_store_is_made_with_what_the_gateway_would_give_it(tmp_path: Path) -> None:
    seen = []

    class Factory:
        options_type = MemoryStoreOptions

        def create(self, context, options):
            seen.append((context, options))
            return "the store"

    options = MemoryStoreOptions()
    configured = ConfiguredStore(
        "toy", cast(Any, Factory()), options, tmp_path, "name", persistent=False
    )
    told = []
    made: Any = configured.create(progress=lambda *one: told.append(one))
    assert made == "the store"
    configured.create()
    (context, given), (silent, _) = seen
    assert given is options
    assert (context.data_directory, context.gateway_name) == (tmp_path, "name")
    assert (context.persistent, context.keep_acknowledged) == (False, True)
    context.progress("what", 1, 2)
    silent.progress("what", 1, 2)
    assert told == [("what", 1, 2)]
