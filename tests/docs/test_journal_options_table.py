"""The table of the documents' options in docs/store-journal.md: complete, and its defaults true."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from tidegate.spi import ConfigError, parse_options
from tidegate_store_journal import JournalOptions

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "store-journal.md"

#: What the four documents have for their file stores, under the names that they give it.
AMQ = """directory useNIO syncOnWrite maxFileLength persistentIndex checkpointInterval
    maxCheckpointMessageAddSize cleanupInterval indexBinSize indexKeySize indexPageSize
    archiveDataLogs directoryArchive persistent brokerName useShutdownHook index-store-state"""
KAHADB = "checkpointInterval"
ARTEMIS = """bindings-directory create-bindings-dir journal-directory node-manager-lock-directory
    create-journal-dir journal-type journal-sync-transactional journal-sync-non-transactional
    journal-file-size journal-min-files journal-pool-files journal-max-io journal-buffer-timeout
    journal-buffer-size journal-compact-min-files journal-compact-percentage journal-datasync
    persistence-enabled"""
FLAT_FILE = """imq.persist.store imq.persist.file.message.max_record_size
    imq.persist.file.destination.message.filepool.limit
    imq.persist.file.message.filepool.cleanratio imq.persist.file.message.cleanup
    imq.persist.file.sync.enabled"""


def rows() -> list[list[str]]:
    text = DOCUMENT.read_text()
    table = text[text.index("## The options of the documents") :]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| ") and not line.startswith("| ---")
    ][1:]


@pytest.mark.parametrize("name", f"{AMQ} {KAHADB} {ARTEMIS} {FLAT_FILE}".split())
def test_every_option_of_the_documents_has_a_row(name: str) -> None:
    found = [row for row in rows() if re.search(rf"[`/]{re.escape(name)}`", row[0])]
    assert found, f"{name} is not in the table"
    assert all(len(row) == 3 and row[2] for row in found)


def test_the_options_and_defaults_that_the_table_names_are_those_of_the_program() -> None:
    fields = {field.name: field for field in dataclasses.fields(JournalOptions)}
    checked = 0
    for _, here, _ in rows():
        for name, written in re.findall(r"`([a-z_]+)`(?: = (\S+))?", here):
            if name == "plugin":
                continue  # of [store], not of the journal's own options
            assert name in fields
            if not written:
                continue
            value = json.loads(written.strip("`"))
            if value == 0:
                assert fields[name].default == 0
            else:
                parsed = parse_options(JournalOptions, {name: value})
                assert getattr(parsed, name) == fields[name].default, name
            checked += 1
    assert checked > 25


def test_a_bare_number_is_refused_for_sizes_and_times() -> None:
    for name, value in (("checkpoint_interval", 6000), ("journal_max_file_length", 33554432)):
        with pytest.raises(ConfigError, match="unit"):
            parse_options(JournalOptions, {name: value})
