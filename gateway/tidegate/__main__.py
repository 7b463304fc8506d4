"""``python -m tidegate`` is the command ``tidegate``."""

from __future__ import annotations

import sys

from tidegate.cli import main

if __name__ == "__main__":
    sys.exit(main())
