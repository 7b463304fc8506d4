"""Proves that a table, its staged files, and the acknowledged log agree."""
