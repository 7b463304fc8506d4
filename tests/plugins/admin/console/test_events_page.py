"""The console in a browser: events as they come."""

from __future__ import annotations

import pytest
from browser import Browser
from console import Console
from selenium.webdriver.support.select import Select

pytestmark = pytest.mark.long


def names(browser: Browser) -> list[str]:
    return [row[1] for row in browser.rows("Events")]


def test_what_happens_is_seen_as_it_happens_and_not_while_it_is_paused(console: Console) -> None:
    browser = console.go("events")
    browser.until(lambda: "gateway-started" in names(browser))
    browser.shows("live")
    console.ask("create-destination", destination="queue://<img")
    browser.until(lambda: names(browser)[:2] == ["operated", "destination-made"])
    browser.shows("queue://<img")  # as text
    browser.press("Pause")
    console.ask("create-destination", destination="queue://two")
    browser.shows("paused, 2 events wait")
    assert "queue://two" not in browser.text()
    browser.press("Continue")
    browser.until(lambda: names(browser)[:2] == ["operated", "destination-made"])
    browser.shows("queue://two", "live")

    Select(browser.field("Kind")).select_by_value("destination")
    browser.until(lambda: set(names(browser)) == {"destination-made"})
    browser.fill("Search", "two")
    browser.press("Find")
    browser.until(lambda: len(names(browser)) == 1)
    console.ask("create-destination", destination="queue://two.three")
    browser.until(lambda: len(names(browser)) == 2)
    browser.press("queue://two.three")
    browser.shows("Where its consumers are fed from")
