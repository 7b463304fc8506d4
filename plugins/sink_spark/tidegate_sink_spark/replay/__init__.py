"""Rows of a table become messages again: the API behind ``tidegate replay``.

What reads tables (``tables``, ``selecting``) knows no gateway, and what speaks to the gateway (``running``) no table.
"""

from tidegate_sink_spark.replay.asking import Asking
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.running import Replayer, Told
from tidegate_sink_spark.replay.selecting import Plan, Reader, Selection
from tidegate_sink_spark.replay.tables import open_table

__all__ = ["Asking", "Maker", "Plan", "Reader", "Replayer", "Selection", "Told", "open_table"]
