"""Rows of a table become messages again: the API behind ``tidegate replay``.

``tables`` and ``selecting``, which read tables, know no gateway; ``running``, which talks to the gateway, no table.
"""

from tidegate_sink_spark.replay.asking import Asking
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.running import Replayer, Told
from tidegate_sink_spark.replay.selecting import Plan, Reader, Selection
from tidegate_sink_spark.replay.tables import open_table

__all__ = ["Asking", "Maker", "Plan", "Reader", "Replayer", "Selection", "Told", "open_table"]
