"""The console in a browser: how the gateway was, over hours and days."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from browser import Browser
from console import Console
from selenium.webdriver.common.keys import Keys

from tidegate_admin.server.history import COLUMNS, HISTORY_FILE, Ring

pytestmark = pytest.mark.long

HOUR = 3600


def EXTRA(directory: Path) -> str:
    """A gateway that was seen for hours, and not from eight to four hours ago."""
    data = directory / "data"
    data.mkdir(mode=0o700)
    ring, now = Ring(data / HISTORY_FILE), time.time()
    for back in range(12 * HOUR, 600, -60):
        if not 4 * HOUR < back < 8 * HOUR:
            wave = 100 + 50 * math.sin(back / HOUR)
            ring.add(now - back, 10.0, [wave] * len(COLUMNS))
    ring.keep(ring.changes())
    ring.close()
    return ""


def curve(browser: Browser) -> str:
    return browser.one(".chart path.line-0").get_dom_attribute("d") or ""


def test_charts_go_back_as_far_as_one_likes_and_show_gaps(console: Console) -> None:
    console.publish("/queue/seen", *[b"x"] * 30)
    browser = console.log_in()
    browser.until(lambda: "L" in curve(browser))  # what the page sees itself
    assert browser.one("button[aria-pressed=true]").text == "15 min"
    browser.press("24 h")
    browser.until(lambda: browser.one("button[aria-pressed=true]").text == "24 h")
    browser.shows("1 d ago", "12 h ago")
    # Eight to four hours ago, and before this gateway began.
    browser.until(lambda: curve(browser).count("M") == 3)
    browser.press("7 d")
    browser.until(lambda: curve(browser).count("M") == 2)
    browser.shows("7 d ago", "3 d 12 h ago")
    browser.driver.refresh()
    browser.until(lambda: browser.one("button[aria-pressed=true]").text == "7 d")
    browser.until(lambda: curve(browser).count("M") == 2)


def test_a_moment_is_read_by_keyboard(console: Console) -> None:
    browser = console.go("overview?range=24h")
    browser.until(lambda: curve(browser).count("M") == 3)
    chart = browser.one(".chart svg")
    chart.send_keys(*[Keys.ARROW_LEFT] * 10)  # four hours
    told = [item for item in browser.all(".chart .when") if item.text]
    assert len(told) == 1
    chart.send_keys(*[Keys.ARROW_LEFT] * 5)
    browser.until(lambda: told[0].text == "no data for that time")
    assert {item.text for item in browser.all(".chart:first-child .legend b")} == {"\u2013"}
    chart.send_keys(*[Keys.ARROW_LEFT] * 10)  # ten hours
    browser.until(lambda: ":" in told[0].text)
    value = float(browser.one(".chart .legend b").text)
    assert 50 <= value <= 150
    chart.send_keys(Keys.ESCAPE)
    browser.until(lambda: not told[0].text)
