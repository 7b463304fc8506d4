"""Whose commits on S3 a log store keeps apart: what is refused without asking. It is asked in test_object_store.py."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.log_store import SINGLE_DRIVER, check_log_store


def session(**settings: str) -> Any:
    """Of Spark, with nothing but settings."""
    conf = {key.replace("_", "."): value for key, value in settings.items()}
    return SimpleNamespace(conf=conf)


@pytest.mark.parametrize("scheme", ["s3a", "s3", "s3n"])
def test_s3_is_refused_unless_a_log_store_is_named_however_a_catalog_writes_it(scheme: str) -> None:
    location = f"{scheme}://lake/acknowledged"
    with pytest.raises(CommitError, match=r"no second driver.*engine 'deltalake'"):
        check_log_store(session(), location)
    other = "s3a" if scheme != "s3a" else "s3"
    with pytest.raises(CommitError, match="no second driver"):
        check_log_store(session(**{f"spark_delta_logStore_{other}_impl": SINGLE_DRIVER}), location)
    check_log_store(session(**{f"spark_delta_logStore_{scheme}_impl": SINGLE_DRIVER}), location)
    check_log_store(session(spark_delta_logStore_class=SINGLE_DRIVER), location)


@pytest.mark.parametrize("location", ["/srv/s3a", "file:/srv/lake", "gs://lake/t", "abfss://c@a/t"])
def test_what_has_a_condition_or_a_lock_is_not_asked(location: str) -> None:
    check_log_store(session(), location)
