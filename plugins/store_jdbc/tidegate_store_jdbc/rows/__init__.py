"""Turns values of the contract into table rows, and batches into statements."""
