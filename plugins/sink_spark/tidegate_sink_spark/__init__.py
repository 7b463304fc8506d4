"""Streams acknowledged messages, exactly once, into a lakehouse table through PySpark."""
