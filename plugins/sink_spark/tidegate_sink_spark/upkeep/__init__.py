"""Upkeep of the tables, beside the commits: few files instead of many, and none that nobody needs."""
