"""Freeing room: reuse, compaction, archive."""
