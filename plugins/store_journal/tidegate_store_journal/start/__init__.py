"""Opening a journal: replay, its end, rebuilding, damage."""
