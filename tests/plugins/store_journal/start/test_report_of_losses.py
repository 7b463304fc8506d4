"""The file that says what was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_store_journal.log.storage import DirectoryStorage
from tidegate_store_journal.start.losses import LossReport


def test_without_losses_there_is_no_file(tmp_path: Path) -> None:
    report = LossReport(DirectoryStorage(tmp_path))
    report.write()
    assert list(tmp_path.iterdir()) == []
    assert report.notes == []


def test_older_reports_stay(tmp_path: Path) -> None:
    (tmp_path / "damage-0004.report").write_text("an older one")
    report = LossReport(DirectoryStorage(tmp_path))
    report.add("one", "details")
    report.write()
    assert "one\ndetails" in (tmp_path / "damage-0005.report").read_text()
    assert (tmp_path / "damage-0004.report").read_text() == "an older one"


def test_more_paragraphs_go_into_the_same_file_and_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = LossReport(DirectoryStorage(tmp_path))
    report.add("one")
    report.write()
    report.add("two")
    report.write()
    assert report.log() == ["one", "two"]
    assert report.notes == []
    assert [path.name for path in tmp_path.iterdir()] == ["damage-0001.report"]
    assert "one\n\ntwo" in (tmp_path / "damage-0001.report").read_text()
    assert [record.getMessage() for record in caplog.records][:2] == [
        "recovery: one",
        "recovery: two",
    ]
    assert str(tmp_path / "damage-0001.report") in caplog.records[2].getMessage()
