"""Staged files that become a table's own, as they are."""
