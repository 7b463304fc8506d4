"""Spark's side of the demo's report: ``read_table.py TABLE FORMAT OUTPUT.json``.

Plain Spark SQL over the table, as a data engineer would write it; only the session (which jars,
which Java) comes from the sink's package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from tidegate_sink_spark import SparkSinkOptions, create_session

#: A message that was delivered again has two rows: its number in the file makes it one.
FLIGHTS: Final = """
    SELECT DISTINCT f.row, f.carrier, f.origin, f.time_hour, CAST(f.hour AS INT) AS hour,
           TRY_CAST(f.dep_delay AS DOUBLE) AS delay
    FROM (SELECT FROM_JSON(CAST(body AS STRING), 'row BIGINT, carrier STRING, origin STRING,
                 time_hour STRING, hour STRING, dep_delay STRING') AS f
          FROM acknowledged WHERE destination = 'queue://nyc.flights')
"""
WEATHER: Final = """
    SELECT DISTINCT w.row, w.origin, w.time_hour, TRY_CAST(w.visib AS DOUBLE) AS visibility
    FROM (SELECT FROM_JSON(CAST(body AS STRING), 'row BIGINT, origin STRING, time_hour STRING,
                 visib STRING') AS w
          FROM acknowledged WHERE destination LIKE 'topic://nyc.weather.%')
"""
COUNTS: Final = """
    SELECT COUNT(*) AS n, COUNT(DISTINCT ack_seq) AS distinct, MIN(ack_seq) AS low,
           MAX(ack_seq) AS high, (SELECT COUNT(*) FROM weather) AS observations
    FROM acknowledged
"""
CARRIERS: Final = """
    SELECT carrier, COUNT(*), COUNT(delay), CAST(COALESCE(SUM(delay), 0) AS BIGINT)
    FROM flights GROUP BY carrier
"""
#: The first plot: delays pile up over the day.
DELAY_BY_HOUR: Final = """
    SELECT origin, hour, AVG(delay) AS delay FROM flights
    WHERE delay IS NOT NULL GROUP BY origin, hour ORDER BY origin, hour
"""
#: The second plot: what came over STOMP joined with what came over MQTT.
DELAY_BY_VISIBILITY: Final = """
    SELECT LEAST(FLOOR(visibility), 10) AS miles, COUNT(*) AS departures, AVG(delay) AS delay
    FROM flights JOIN weather USING (origin, time_hour)
    WHERE delay IS NOT NULL AND visibility IS NOT NULL GROUP BY miles ORDER BY miles
"""


def main() -> None:
    table, table_format, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    spark = create_session("tidegate-demo-report", SparkSinkOptions(format=table_format))
    if table_format == "parquet":
        # Names that begin with "_" are the sink's own: Spark leaves them out.
        acknowledged = spark.read.parquet(table)
    else:
        acknowledged = spark.read.format(table_format).load(table)
    acknowledged.createOrReplaceTempView("acknowledged")
    spark.sql(FLIGHTS).cache().createOrReplaceTempView("flights")
    spark.sql(WEATHER).cache().createOrReplaceTempView("weather")
    rows, distinct, low, high, observations = spark.sql(COUNTS).first()
    carriers = {name: list(figures) for name, *figures in spark.sql(CARRIERS).collect()}
    found = {
        "rows": rows,
        "distinct_flights": sum(departures for departures, _, _ in carriers.values()),
        "distinct_weather": observations,
        "ack_dense": rows == distinct == high and low == 1,
        "carriers": carriers,
        "delay_by_hour": [list(row) for row in spark.sql(DELAY_BY_HOUR).collect()],
        "delay_by_visibility": [list(row) for row in spark.sql(DELAY_BY_VISIBILITY).collect()],
    }
    output.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
