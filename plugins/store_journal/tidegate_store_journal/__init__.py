"""The append-only journal store: data files, index, checkpoint, recovery."""
