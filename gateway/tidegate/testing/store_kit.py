"""The conformance kit for message stores::

    pytest --pyargs tidegate.testing.store_kit --store=NAME [--store-option KEY=VALUE ...]

runs it over the store installed under the entry point ``store-NAME``. To run it from your own test
suite, subclass and override one fixture::

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store_factory(self):
            return MyStoreFactory()

If your tests can make the store full, also subclass ``StoreFullConformance``, and override
``store_factory`` and ``limit_room`` there.

Every test opens the store in its own directory and restarts it when needed. The kit expects what
the store declares in its capabilities, and only that. A ``close()`` that hangs ends its test within
15 seconds.
"""

from __future__ import annotations

from tidegate.testing._store_kit.box import StoreBox
from tidegate.testing._store_kit.full import StoreFullConformance
from tidegate.testing._store_kit.lists import StoreLists
from tidegate.testing._store_kit.optional import StoreBranches, StoreLog
from tidegate.testing._store_kit.order import StoreOrder
from tidegate.testing._store_kit.recovery import StoreRecovery
from tidegate.testing._store_kit.restarts import StoreRestarts
from tidegate.testing._store_kit.seen import StoreFilesKept, StorePartsKept

__all__ = ["StoreBox", "StoreConformance", "StoreFullConformance"]


class StoreConformance(
    StoreLists,
    StoreRestarts,
    StoreRecovery,
    StoreOrder,
    StoreLog,
    StoreBranches,
    StoreFilesKept,
    StorePartsKept,
):
    """What every message store must do. Subclass it and override ``store_factory``."""


class TestStore(StoreConformance):
    """Runs the kit over the store that ``--store`` names."""
