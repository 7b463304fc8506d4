"""Upkeep of the tables: few files instead of many, and none that nobody needs, beside the commits."""
