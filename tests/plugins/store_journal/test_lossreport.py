"""The file that says what was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_store_journal.log.datafile import DataFile
from tidegate_store_journal.log.storage import DirectoryStorage
from tidegate_store_journal.start.damage import Damage
from tidegate_store_journal.start.lossreport import LossReport


def test_without_losses_there_is_no_file(tmp_path: Path) -> None:
    report = LossReport(DirectoryStorage(tmp_path))
    report.add_lost("nothing", {})
    report.write()
    assert list(tmp_path.iterdir()) == []
    assert report.notes == []


def test_a_report_names_file_offset_length_copy_and_messages(tmp_path: Path) -> None:
    (tmp_path / "damage-0004.report").write_text("an older one")
    report = LossReport(DirectoryStorage(tmp_path))
    report.name_of = lambda list_id: f"queue://q{list_id}"
    damage = Damage(
        DataFile(3, 65536, 1, home=DirectoryStorage(tmp_path)), 5000, 5400, 7, 8, 20, 3, 2, 18, 20
    )
    report.add_damage(damage, "journal-0000000003.data.5000.damaged")
    report.add_lost("the data files are missing", {2: [5, 1, 2, 3], 1: [9]})
    report.write()
    text = (tmp_path / "damage-0005.report").read_text()
    assert "journal-0000000003.data: 400 bytes at offset 5000 were damaged (batches 7 to 8)" in text
    assert "journal-0000000003.data.5000.damaged" in text
    assert "among 18 to 20" in text
    assert "5 pending messages are lost because the data files are missing:" in text
    assert "  queue://q1: 9\n  queue://q2: 1-3, 5" in text
    assert (tmp_path / "damage-0004.report").read_text() == "an older one"


def test_a_part_without_messages_and_one_of_unknown_contents_are_said_to_be(tmp_path: Path) -> None:
    report = LossReport(DirectoryStorage(tmp_path))
    file = DataFile(3, 65536, 1, home=DirectoryStorage(tmp_path))
    report.add_damage(Damage(file, 5000, 5400, 7, 7, 20, 3, 2, 21, 20), "copy")
    report.add_damage(Damage(file, 6000, 6400, 9, 9, 20, 3, 2), "copy")
    report.write()
    text = (tmp_path / report.name).read_text()
    assert "No message was added there." in text
    assert "how many is not known" in text


def test_more_paragraphs_go_into_the_same_file_and_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = LossReport(DirectoryStorage(tmp_path))
    report.add_note("one")
    report.write()
    report.add_note("two")
    report.write()
    report.log()
    assert [path.name for path in tmp_path.iterdir()] == ["damage-0001.report"]
    assert "one\n\ntwo" in (tmp_path / "damage-0001.report").read_text()
    assert [record.getMessage() for record in caplog.records][:2] == [
        "recovery: one",
        "recovery: two",
    ]
    assert str(tmp_path / "damage-0001.report") in caplog.records[2].getMessage()
