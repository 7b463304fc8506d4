"""Looking into a journal, checking it, and offline work on it."""
