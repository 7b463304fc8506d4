"""Runs of the log as Arrow batches: their messages become columns without an object for each."""
