"""A Spark data source for a Tidegate gateway's acknowledged log: ``format("tidegate")``.

Spark registers ``DefaultSource`` of each installed module whose name begins with ``pyspark_``. It
needs Spark 4.1 or newer and Arrow Flight, and no part of the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_tidegate._client import Client, Gone
from pyspark_tidegate._options import Options
from pyspark_tidegate._readers import BatchReader, StreamReader, spark_schema

__all__ = ["Client", "DefaultSource", "Gone"]


class DefaultSource(DataSource):
    """``spark.read.format("tidegate")`` and ``spark.readStream.format("tidegate")``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._parsed = Options.of(options)

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        """The gateway's: the columns of the sinks' tables."""
        return spark_schema(Client.of(self._parsed).schema())

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        return StreamReader(self._parsed)
