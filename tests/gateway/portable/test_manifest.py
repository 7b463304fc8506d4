"""``manifest.json`` and what is said when it is missing, foreign or newer."""

import json
from pathlib import Path

import pytest

from tidegate.portable import FORMAT_NAME, FORMAT_VERSION, Manifest, TableFacts, read_manifest
from tidegate.portable._manifest import MANIFEST_NAME, check_table, table_facts, write_manifest
from tidegate.spi import ConfigError, StoreIOError

MANIFEST = Manifest(
    FORMAT_NAME, FORMAT_VERSION, "0.1.0", 1, "abc", 2**63, 4, {"messages": TableFacts(5, 6, "ab")}
)


def test_it_comes_back_and_people_can_read_it(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    text = (tmp_path / MANIFEST_NAME).read_text()
    assert text.startswith('{\n  "format": "tidegate-portable",\n  "version": 1,\n')
    assert json.loads(text)["tables"] == {"messages": {"rows": 5, "bytes": 6, "sha256": "ab"}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2 of the format, and this program reads only up to 1"),
        ({"version": 0}, "version 0"),
        ({"format": "other"}, "has the format 'other'"),
        ({"tables": 3}, "is not the manifest"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, changes: dict, said: str) -> None:
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=said):
        read_manifest(tmp_path)


def test_a_directory_without_one_is_no_finished_export(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a finished export"):
        read_manifest(tmp_path)
    with pytest.raises(ConfigError, match="there is no directory"):
        read_manifest(tmp_path / "nowhere")


def test_further_keys_of_a_newer_program_are_no_harm(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))
    assert read_manifest(tmp_path) == MANIFEST


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"whole")
    facts = table_facts(path, 3)
    assert (facts.rows, facts.bytes) == (3, 5)
    check_table(path, facts)
    path.write_bytes(b"whale")
    with pytest.raises(StoreIOError, match="SHA-256"):
        check_table(path, facts)
    check_table(path, TableFacts(3))  # whoever wrote it did not say
    path.unlink()
    with pytest.raises(StoreIOError, match="No such file"):
        check_table(path, facts)
