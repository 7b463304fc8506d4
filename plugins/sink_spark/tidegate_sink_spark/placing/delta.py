"""Which Delta tables take staged files as they are, and the actions that name these files.

Source: Delta's PROTOCOL.md, "Add File and Remove File", "Table Features", "Change Metadata". A table may ask its
writers for more than rows: to check them, to compute columns, to number them, to name columns otherwise in files. Of such
a table Spark writes every row anew, which does all that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote

from tidegate_sink_spark.placing.files import PlacedFile

#: Features that ask nothing of a file of rows that are appended, and those that do so by the settings below.
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
#: Writers before version 7 have no list: 6 and lower are the features above.
_LISTED_FROM: Final = 7
#: Beginnings of settings, and of what is said of a column, that ask for more.
_ASKING_SETTINGS: Final = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableIceberg")
_ASKING_OF_COLUMN: Final = "delta."
#: Columns that a table of files as they are may be partitioned by.
PARTITIONS: Final = frozenset({"ack_date", "destination"})


def partitions_of_whole_files(protocol: str, metadata: str) -> tuple[str, ...] | None:
    """The columns that the table is partitioned by; None when it does not take files as they are.

    Args: protocol, metadata: the table's actions of that name, as its log has them.
    """
    asked = json.loads(protocol)["protocol"]
    features = asked.get("writerFeatures") or ()
    if asked["minWriterVersion"] >= _LISTED_FROM and not _FEATURES.issuperset(features):
        return None
    table = json.loads(metadata)["metaData"]
    if any(key.startswith(_ASKING_SETTINGS) for key in table.get("configuration", {})):
        return None
    fields = cast("Sequence[Mapping[str, Any]]", json.loads(table["schemaString"])["fields"])
    if any(_asks(field) for field in fields):
        return None
    columns = tuple(str(name) for name in table["partitionColumns"])
    return columns if PARTITIONS.issuperset(columns) else None


def _asks(field: Mapping[str, Any]) -> bool:
    """Tell whether a column wants more than values: not to be NULL, to be computed, a name of its own in files."""
    said = field.get("metadata", {})
    return not field["nullable"] or any(key.startswith(_ASKING_OF_COLUMN) for key in said)


def add_action(file: PlacedFile, now_ms: int) -> str:
    """The action that adds *file* to its table."""
    action = {
        "path": quote(file.name, safe="/="),
        "partitionValues": file.partition,
        "size": file.size_bytes,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": file.statistics,
    }
    return json.dumps({"add": action})
