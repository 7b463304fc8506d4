"""Runs of the log as Arrow batches: messages become columns without an object for each."""
