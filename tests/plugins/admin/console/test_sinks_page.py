"""The console in a browser: how far the sinks of a gateway are."""

from __future__ import annotations

import pytest
from console import Console

pytestmark = pytest.mark.long

EXTRA = """
[[sinks]]
plugin = "flight"
name = "lake"
bind = "127.0.0.1:0"
readers = { etl = "anonymous" }
"""


def test_a_sink_says_how_far_it_is_and_what_it_waits_for(console: Console) -> None:
    console.publish("/queue/acknowledged", *[b"x" * 100] * 5)
    console.consume("/queue/acknowledged", 5)
    browser = console.go("sinks")
    browser.shows("lake", "Behind", "5 messages", "Oldest of them", "Kept by the log", "5 rows")
    browser.press("Tidy its target now")
    browser.shows("the sink 'lake' cannot be compacted")  # rows go where they are asked for
