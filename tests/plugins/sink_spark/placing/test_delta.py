"""Which Delta tables get staged files as they are."""

import json
from typing import Any

import pytest

from tidegate_sink_spark.placing.delta import add_action, partitions_of_whole_files
from tidegate_sink_spark.placing.files import PlacedFile

COLUMN = {"name": "ack_seq", "type": "long", "nullable": True, "metadata": {}}


def asked(
    *features: str,
    writer: int = 7,
    partitions: tuple[str, ...] = (),
    settings: dict[str, str] | None = None,
    **column: Any,
) -> tuple[str, ...] | None:
    listed = {"writerFeatures": list(features)} if writer >= 7 else {}
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": writer, **listed}}
    metadata = {
        "metaData": {
            "schemaString": json.dumps({"type": "struct", "fields": [COLUMN | column]}),
            "partitionColumns": list(partitions),
            "configuration": settings or {},
        }
    }
    return partitions_of_whole_files(json.dumps(protocol), json.dumps(metadata))


@pytest.mark.parametrize("partitions", [(), ("ack_date",), ("destination", "ack_date")])
def test_a_table_that_asks_for_nothing_but_rows_takes_files(partitions: tuple[str, ...]) -> None:
    assert asked(writer=2, partitions=partitions) == partitions
    assert asked("clustering", "domainMetadata", "appendOnly", "invariants") == ()
    assert asked(settings={"delta.checkpointInterval": "50"}) == ()


@pytest.mark.parametrize(
    "feature", ["rowTracking", "icebergCompatV2", "allowColumnDefaults", "somethingNew"]
)
def test_a_table_with_a_feature_that_asks_for_more_is_written_by_spark(feature: str) -> None:
    assert asked("clustering", feature) is None


@pytest.mark.parametrize(
    "key",
    ["delta.constraints.positive", "delta.columnMapping.mode", "delta.enableIcebergCompatV2"],
)
def test_a_table_with_a_setting_that_asks_for_more_is_written_by_spark(key: str) -> None:
    assert asked(writer=4, settings={key: "ack_seq > 0"}) is None


@pytest.mark.parametrize(
    "column",
    [
        {"nullable": False},
        {"metadata": {"delta.invariants": "{}"}},
        {"metadata": {"delta.generationExpression": "1"}},
        {"metadata": {"delta.identity.start": 1}},
        {"metadata": {"delta.columnMapping.physicalName": "col-1"}},
    ],
)
def test_a_column_that_asks_for_more_than_values_is_written_by_spark(
    column: dict[str, Any],
) -> None:
    assert asked(**column) is None
    assert asked(metadata={"comment": "of the log"}) == ()


def test_a_table_that_is_partitioned_by_something_else_is_written_by_spark() -> None:
    assert asked(partitions=("ack_date", "outcome")) is None


def test_an_action_names_the_file_as_a_uri() -> None:
    file = PlacedFile("ack_date=2026-01-02/a b%.parquet", 3, 10, {"ack_date": "2026-01-02"}, "{}")
    assert json.loads(add_action(file, 7))["add"] == {
        "path": "ack_date=2026-01-02/a%20b%25.parquet",
        "partitionValues": {"ack_date": "2026-01-02"},
        "size": 10,
        "modificationTime": 7,
        "dataChange": True,
        "stats": "{}",
    }
