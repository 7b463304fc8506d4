"""The pictures of docs/console.md. With TIDEGATE_PICTURES=docs/images this makes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import Browser
from console import Console
from gateway_process import GatewayProcess

pytestmark = pytest.mark.long

DOCS = Path(__file__).resolve().parents[4] / "docs"
BYTES_MAX = 200_000
NAMES = {
    "console-overview.png",
    "console-destinations.png",
    "console-events.png",
    "console-dead-letter.png",
    "console-drain.png",
}
OTHERS: list[GatewayProcess] = []


def EXTRA(directory: Path) -> str:
    """A bridge to another gateway, for its queues."""
    (directory / "other").mkdir()
    OTHERS[:] = [GatewayProcess(directory / "other")]
    return f"""
[[extensions]]
plugin = "bridge"
name = "next"
remote = "stomp://localhost:{OTHERS[0].stomp_port}"
reconnect_min = "50ms"
reconnect_max = "200ms"
"""


def test_the_pictures_of_the_docs_can_be_made(console: Console, tmp_path: Path) -> None:
    wanted = os.environ.get("TIDEGATE_PICTURES")
    folder = Path(wanted or tmp_path).absolute()
    order = b'{"order": 4711, "items": [{"sku": "A-17", "count": 2}], "total": 49.90}'
    for name, count in (("orders.eu", 320), ("orders.us", 87), ("billing", 12), ("mail", 3)):
        console.publish(f"/queue/{name}", *[order] * count, tenant="acme")
    console.reject("/queue/billing", 5)
    console.consume("/queue/orders.eu", 40)
    console.ask("pause-destination", destination="queue://mail", sides=["consumers"])
    browser = console.log_in()
    size = {"width": 1280, "height": 840, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.driver.execute_script("location.hash = '#/events'")
        browser.until(lambda: browser.rows("Events"))
        browser.shows("messages-dead-lettered", "live")
        take(browser, folder / "console-events.png")
        browser.driver.execute_script("location.hash = '#/overview'")
        browser.until(lambda: browser.rows("Destinations with the largest backlog"))
        for number in range(2, 40 if wanted else 3):  # for curves to look at
            console.publish("/queue/orders.us", *[order] * (20 + number % 7 * 5))
            console.consume("/queue/orders.us", 20 + number % 5 * 5)
            browser.until(lambda number=number: samples(browser) >= number)
        take(browser, folder / "console-overview.png")
        browser.driver.execute_script("location.hash = '#/destinations?sort=pending'")
        browser.until(lambda: browser.rows("Destinations"))
        take(browser, folder / "console-destinations.png")
        browser.is_dark(True)
        place = f"#/dead-letter/{quote('queue://DLQ.billing', safe='')}"
        browser.driver.execute_script("location.hash = arguments[0]", place)
        browser.until(lambda: browser.rows("Messages"))
        browser.press(browser.rows("Messages")[0][1])
        browser.shows("tenant")
        take(browser, folder / "console-dead-letter.png")
        browser.is_dark(False)
        with OTHERS[0]:
            console.ask("drain", server_reference="b.example:61613", hand_over="next")
            browser.driver.execute_script("location.hash = '#/drain'")
            browser.until(lambda: browser.rows("What stays here"))
            browser.shows("done: no queue has anything more that can go")
            take(browser, folder / "console-drain.png")
            console.ask("undrain")
    finally:
        browser.is_dark(False)
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert {path.name for path in folder.glob("console-*.png")} == NAMES


def samples(browser: Browser) -> int:
    """Points of the first curve."""
    return (browser.one(".chart path.line-0").get_dom_attribute("d") or "").count("L") + 1


def take(browser: Browser, path: Path) -> None:
    assert browser.driver.save_screenshot(str(path))
    assert path.stat().st_size < BYTES_MAX


def test_the_docs_show_those_pictures() -> None:
    shown = re.findall(r"!\[[^]]+\]\(images/([^)]+)\)", (DOCS / "console.md").read_text())
    assert set(shown) == NAMES
    for name in shown:
        data = (DOCS / "images" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < BYTES_MAX
