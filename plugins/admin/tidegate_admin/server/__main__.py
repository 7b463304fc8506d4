"""``python -m tidegate_admin.server LINK``. Readiness waits for its imports, so they are few."""

from __future__ import annotations

import gc
import sys


def _run() -> None:
    # Imported objects are never garbage, and the collector would scan them again and again.
    gc.disable()
    from tidegate_admin.server.main import main

    gc.freeze()
    gc.enable()
    main(sys.argv[1:])


_run()
