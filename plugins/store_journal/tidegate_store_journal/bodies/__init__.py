"""Bodies outside of the journal: large messages."""
