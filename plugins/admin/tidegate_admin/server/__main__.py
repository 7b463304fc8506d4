"""``python -m tidegate_admin.server LINK``: what it imports, readiness waits for."""

from __future__ import annotations

import gc
import sys


def _run() -> None:
    # Nothing that is imported is garbage, and the collector would look through it again and again.
    gc.disable()
    from tidegate_admin.server.main import main

    gc.freeze()
    gc.enable()
    main(sys.argv[1:])


_run()
