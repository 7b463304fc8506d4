"""Opening a journal: replay, its end, rebuild, damage."""
