"""Spark's side of the demo's report: ``read_table.py TABLE OUTPUT.json``.

A plain PySpark program over the table, as a data engineer would write it; only the session (which
jars, which Java) comes from the sink's package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidegate_sink_spark import create_session


def main() -> None:
    table, output = sys.argv[1], Path(sys.argv[2])
    from pyspark.sql import functions as f

    spark = create_session("tidegate-demo-report")
    rows = spark.read.format("delta").load(table)
    row = f.get_json_object(f.col("body").cast("string"), "$.row").cast("long")
    counts = rows.agg(
        f.count("*").alias("rows"),
        f.count_distinct("ack_seq").alias("distinct"),
        f.min("ack_seq").alias("low"),
        f.max("ack_seq").alias("high"),
    ).first()
    flights = (
        rows.where(f.col("destination") == "queue://nyc.flights")
        .withColumn("row", row)
        .dropDuplicates(["row"])
        .withColumn("carrier", f.get_json_object(f.col("body").cast("string"), "$.carrier"))
        .withColumn(
            "delay",
            f.expr("try_cast(get_json_object(cast(body AS string), '$.dep_delay') AS double)"),
        )
    )
    weather = (
        rows.where(f.col("destination").startswith("topic://nyc.weather."))
        .withColumn("row", row)
        .select("row")
        .distinct()
    )
    carriers = {
        entry["carrier"]: [entry["departures"], entry["known"], int(entry["total"] or 0)]
        for entry in flights.groupBy("carrier")
        .agg(
            f.count("*").alias("departures"),
            f.count("delay").alias("known"),
            f.sum("delay").alias("total"),
        )
        .collect()
    }
    dense = counts["rows"] == counts["distinct"] == counts["high"] and counts["low"] == 1
    found = {
        "rows": counts["rows"],
        "distinct_flights": sum(entry[0] for entry in carriers.values()),
        "distinct_weather": weather.count(),
        "ack_dense": bool(dense),
        "carriers": carriers,
    }
    output.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
