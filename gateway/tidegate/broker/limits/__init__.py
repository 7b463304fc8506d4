"""How much may wait, and what happens above that."""
