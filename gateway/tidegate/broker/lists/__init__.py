"""Pending lists and who consumes from them."""
