"""Prints the table of docs/metrics.md."""

import sys

from tidegate_admin.server.metrics import table

sys.stdout.write(table())
