"""Proves that a table, what is staged, and the acknowledged log agree."""
