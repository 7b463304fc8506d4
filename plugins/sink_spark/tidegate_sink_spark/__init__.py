"""Streams acknowledged messages, exactly once, into a lakehouse table through PySpark."""

from tidegate_sink_spark._options import SparkSinkOptions
from tidegate_sink_spark._reader import create_session

__all__ = ["SparkSinkOptions", "create_session"]
