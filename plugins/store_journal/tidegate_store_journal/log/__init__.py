"""The log itself: bytes, data files, writers. Everything that is on disk goes through here."""
