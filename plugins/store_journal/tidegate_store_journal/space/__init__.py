"""Getting room back: reuse, compaction, archive."""
