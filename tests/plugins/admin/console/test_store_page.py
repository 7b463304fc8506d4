"""The console in a browser: a store that is a database with a journal in front."""

from __future__ import annotations

import pytest
from console import Console

pytestmark = pytest.mark.long

EXTRA = '[store]\nplugin = "journaled"\n'


def test_a_store_of_two_parts_is_shown_with_both_and_who_has_it(console: Console) -> None:
    console.ask("publish-message", destination="queue://kept", body="eA==")
    browser = console.go("store")
    browser.shows("writable", "survives a power cut", "What it is made of")
    caption = "What it is made of"
    browser.until(lambda: browser.rows(caption))
    rows = browser.rows(caption)
    kinds = {row[0] for row in rows}
    assert kinds == {"journal file", "database file", "write-ahead log", "lease"}
    (file,) = [row for row in rows if row[0] == "database file"]
    assert file[1].endswith("tidegate.db")
    assert "KiB" in file[2]
    assert "pages of 4096 bytes are free" in file[6]
    (lease,) = [row for row in rows if row[0] == "lease"]
    assert "held by under-test on " in lease[6]
    assert "unless it is renewed" in lease[6]
    # There is no list of files to ask for, and no problem with it.
    assert not browser.rows("Files")
    assert not any(item.text for item in browser.all(".problem"))
