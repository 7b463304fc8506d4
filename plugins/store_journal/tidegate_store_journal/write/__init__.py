"""Writing: batches, encoded and appended, and the writers that put them on disk."""
