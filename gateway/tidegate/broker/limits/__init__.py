"""How much may wait, and what happens beyond that."""
