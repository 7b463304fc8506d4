"""The console in a browser: logging in, the overview, and what is done to destinations."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from browser import ENTER, ESCAPE, TAB, Browser
from console import Console
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.long

#: As hostile as a name may be: the sign > stands for a wildcard.
HOSTILE = "\"'<img src=x onerror=document.title='taken' x="


def names(browser: Browser) -> list[str]:
    return [row[0] for row in browser.rows("Destinations")]


def test_only_credentials_that_count_let_one_in(console: Console) -> None:
    browser = console.browser
    browser.open(console.url)
    browser.driver.execute_script("sessionStorage.clear()")
    browser.open(console.url)
    browser.shows("Gateway: ready")
    browser.press("Log in")
    browser.shows("Enter the token")
    browser.fill("Token", "x" * 43)
    browser.press("Log in")
    browser.shows("That is not accepted")
    browser.press("User name and password instead")
    browser.fill("User name", "ann")
    browser.fill("Password", "secret")
    browser.press("Log in")
    browser.until(lambda: browser.one("button.primary").is_enabled())
    browser.shows("That is not accepted")
    browser.press("User name and password instead")
    browser.fill("Token", console.token).send_keys(ENTER)
    browser.shows("Ready: clients are let in, and what they send is confirmed.", "under-test")
    browser.driver.refresh()  # the tab remembers
    browser.shows("Largest backlogs")
    browser.press("Log out")
    browser.shows("Log in")
    browser.driver.refresh()
    browser.shows("Gateway: ready")
    assert not browser.driver.get_cookies()


def test_the_gateway_says_where_the_console_is_and_where_its_token_is(console: Console) -> None:
    said = console.gateway.log.read_text()
    directory = console.gateway.directory / "data"
    assert f"console={console.url} token_file={directory / 'admin.token'}" in said
    assert console.token not in said


def test_the_overview_shows_what_goes_through_and_what_is_near_its_limit(console: Console) -> None:
    console.publish("/queue/seen.much", *[b"x"] * 30)
    browser = console.log_in()
    browser.shows("running", "Published a second", "Wait for confirmation, p99", "p50 ")
    backlog = browser.rows("Destinations with the largest backlog")
    browser.until(lambda: browser.rows("Destinations with the largest backlog"))
    backlog = browser.rows("Destinations with the largest backlog")
    assert ["queue://seen.much", "30"] in [row[:2] for row in backlog]
    rooms = browser.rows("What is used, and its limit")
    assert [row[0] for row in rooms][:2] == ["Store", "Memory held for clients"]
    assert all(item.get_attribute("aria-valuetext") for item in browser.all("[role=meter]"))


def test_destinations_are_searched_sorted_and_paged_by_the_gateway(console: Console) -> None:
    for number in range(60):
        console.ask("create-destination", destination=f"queue://many.n{number:02}")
    console.publish("/queue/many.n33", b"a", b"b")
    console.publish("/queue/other", b"a")
    browser = console.go("destinations")
    browser.fill("Search", "many.>").send_keys(ENTER)
    browser.until(lambda: names(browser) == [f"queue://many.n{n:02}" for n in range(50)])
    browser.press("Next →")
    browser.until(lambda: names(browser) == [f"queue://many.n{n:02}" for n in range(50, 60)])
    browser.shows("51 to 60")
    browser.press("← Previous")
    browser.until(lambda: names(browser)[:1] == ["queue://many.n00"])
    browser.press("Pending")
    browser.until(lambda: names(browser)[:1] == ["queue://many.n33"])
    assert browser.rows("Destinations")[0][1] == "2"
    assert browser.one("th[aria-sort]").text.startswith("Pending")
    browser.driver.back()
    browser.until(lambda: names(browser)[:1] == ["queue://many.n00"])
    browser.fill("Search", "NY.n3").send_keys(ENTER)  # any part, whatever its case
    browser.until(lambda: names(browser) == [f"queue://many.n{n}" for n in range(30, 40)])
    # By keyboard alone.
    browser.one("h1").click()
    browser.keys("/")
    browser.until(lambda: browser.driver.switch_to.active_element.get_attribute("type") == "search")
    browser.fill("Search", "queue://nowhere.>").send_keys(ENTER)
    browser.shows("Nothing matches.")


def test_a_queue_is_made_paused_and_resumed(console: Console) -> None:
    browser = console.go("destinations")
    browser.press("Create queue …")
    browser.fill("Name", "made.here").send_keys(ENTER)
    browser.shows("made.here was created.")
    browser.press("queue://made.here")
    browser.shows("Where its consumers are fed from")
    browser.press("Pause …")
    browser.shows("It lasts until it is resumed")
    browser.press("Pause", within="dialog")
    browser.shows("paused: producers, consumers")
    browser.press("Resume")
    browser.shows("is resumed")
    browser.until(lambda: not browser.all(".tags .tag"))


def test_a_purge_names_the_queue_and_the_count_and_asks_first(console: Console) -> None:
    destination = "queue://to.purge"
    console.publish("/queue/to.purge", *[b"x"] * 1234, kind="test")
    browser = console.go(f"destination/{quote(destination, safe='')}")
    browser.press("Purge …")
    browser.press("Continue …")
    browser.shows(
        "This removes 1,234 pending messages of queue://to.purge.",
        "They can be brought back for an hour.",
        "Purge 1,234 messages",
    )
    assert browser.driver.switch_to.active_element.text == "Cancel"
    browser.keys(ESCAPE)
    browser.until(lambda: not browser.all("dialog"))
    assert console.pending(destination) == 1234
    browser.press("Purge …")
    browser.fill("Only messages with (selector)", "kind = 'none'")
    browser.field("Can be undone").send_keys("not")
    browser.press("Continue …")
    browser.shows(
        "those of its 1,234 pending messages with kind = 'none'", "This cannot be undone."
    )
    browser.press("Purge those")
    browser.shows("0 messages of queue://to.purge were purged.")
    browser.press("Purge …")
    browser.fill("At most", "1000")
    browser.press("Continue …")
    browser.shows("the first 1,000 of 1,234 pending messages")
    browser.press("Purge 1,000 messages")
    browser.shows("1,000 messages of queue://to.purge were purged.")
    assert console.pending(destination) == 234
    # And back, from the queue that has them.
    browser.shows("Purged, and kept")
    browser.press("1,000 messages")
    browser.shows("Purged from queue://to.purge, and kept until")
    browser.press("Undo purge")
    browser.shows("were brought back.")
    browser.until(lambda: browser.one("h1").text == destination)
    assert console.pending(destination) == 1234
    assert not console.look("list-purged")["rows"]


def test_messages_move_to_a_queue_that_is_there(console: Console) -> None:
    console.publish("/queue/move.from", b"1", b"2", b"3")
    browser = console.go(f"destination/{quote('queue://move.from', safe='')}")
    browser.press("Move …")
    browser.fill("To queue", "move.to")
    browser.press("Move", within="dialog")
    browser.shows("there is no queue 'queue://move.to'")
    console.ask("create-destination", destination="queue://move.to")
    browser.press("Move …")
    browser.fill("To queue", "move.to")
    browser.press("Move", within="dialog")
    browser.shows("3 messages of queue://move.from were moved to queue://move.to.")
    assert (console.pending("queue://move.from"), console.pending("queue://move.to")) == (0, 3)


def test_a_queue_with_messages_is_deleted_only_when_that_is_said(console: Console) -> None:
    console.publish("/queue/to.delete", b"1")
    console.publish("/queue/to.stay", b"1")
    browser = console.go(f"destination/{quote('queue://to.delete', safe='')}")
    browser.press("Delete …")
    browser.shows("It has 1 pending message and 0 consumers.")
    browser.press("Delete", within="dialog")
    browser.shows("queue://to.delete is not empty")
    browser.field("Even with messages: 1 message and those in flight are lost").click()
    browser.press("Delete", within="dialog")
    browser.shows("queue://to.delete was deleted.")
    browser.until(lambda: browser.rows("Destinations"))
    assert "queue://to.delete" not in names(browser)


def test_a_hostile_name_is_text(console: Console) -> None:
    console.publish(f"/queue/{HOSTILE}", b"x")
    browser = console.go("destinations")
    browser.until(lambda: f"queue://{HOSTILE}" in names(browser))
    browser.press(f"queue://{HOSTILE}")
    browser.until(lambda: browser.one("h1").text == f"queue://{HOSTILE}")
    browser.press("Purge …")
    browser.press("Continue …")
    browser.shows(f"1 pending message of queue://{HOSTILE}")
    browser.keys(ESCAPE)
    assert not browser.all("img:not(.brand img)")
    assert browser.driver.title == f"queue://{HOSTILE} - Tidegate"


def test_markup_cannot_be_made_of_text_in_this_page(console: Console) -> None:
    browser = console.log_in()
    for code in (
        "document.querySelector('h1').innerHTML = '<b>x</b>'",
        "document.querySelector('h1').insertAdjacentHTML('beforeend', '<b>x</b>')",
    ):
        wrapped = f"try {{ {code}; return 'done' }} catch (error) {{ return error.name }}"
        assert browser.driver.execute_script(wrapped) == "TypeError"
    browser.errors()  # it was told of both


def test_the_page_can_be_used_by_keyboard_and_read_out(console: Console) -> None:
    browser = console.log_in()
    browser.driver.refresh()
    browser.shows("Ready")
    assert browser.driver.execute_script("return document.documentElement.lang") == "en"
    assert browser.all("header, nav[aria-label], main")
    unnamed = browser.driver.execute_script(
        "return [...document.querySelectorAll('button, a, input, select, [role=img], [role=meter]')].filter((item) =>"
        " !item.innerText && !item.getAttribute('aria-label') && !(item.labels && item.labels.length)).map((item) => item.outerHTML)"
    )
    assert unnamed == []
    browser.keys(TAB)
    browser.until(lambda: browser.driver.switch_to.active_element.text == "Skip to content")
    browser.keys(ENTER)
    assert browser.driver.switch_to.active_element.tag_name == "main"


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_its_ground(console: Console, dark: bool) -> None:
    browser = console.log_in()
    browser.is_dark(dark)
    browser.shows("Ready")
    weak = browser.driver.execute_script(CONTRAST)
    browser.is_dark(False)
    assert weak == []


def test_a_narrow_screen_does_not_scroll_sideways(console: Console) -> None:
    browser = console.log_in()
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for place in ("overview", "destinations", "destination/queue%3A%2F%2Fto.purge"):
            browser.driver.execute_script("location.hash = arguments[0]", f"#/{place}")
            browser.one("h1")
            wide = "return document.documentElement.scrollWidth"
            assert browser.driver.execute_script(wide) <= 360, place
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


#: WCAG 2.2, 1.4.3: texts whose contrast with the nearest ground is below 4.5.
CONTRAST = """
const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((part) => part / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (item) => {
    for (; item; item = item.parentElement) {
        const colour = parsed(getComputedStyle(item).backgroundColor);
        if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
};
return [...document.querySelectorAll('body *')].filter((item) =>
    [...item.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && item.checkVisibility() && !item.disabled
).map((item) => {
    const [a, b] = [light(parsed(getComputedStyle(item).color)), light(ground(item))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), item.className || item.tagName, item.textContent.slice(0, 40)];
}).filter(([contrast]) => contrast < 4.5);
"""


def focused(browser: Browser, attribute: str, value: str) -> WebElement | None:
    """What has the focus, if that is it."""
    active = browser.driver.switch_to.active_element
    return active if active.get_attribute(attribute) == value else None


def test_who_uses_the_keyboard_stays_where_they_are(console: Console) -> None:
    console.publish("/queue/typed", b"x")
    browser = console.go("destinations")
    browser.field("Order").send_keys(Keys.ARROW_DOWN)
    for sort in ("pending", "consumers"):
        browser.until(lambda sort=sort: f"sort={sort}" in browser.driver.current_url)
        # Another one than before: the page is made anew, and that one has the focus again.
        active = browser.until(lambda: focused(browser, "aria-label", "Order"))
        active.send_keys(Keys.ARROW_DOWN)
    browser.fill("Search", "typed").send_keys(ENTER)
    browser.until(lambda: "match=typed" in browser.driver.current_url)
    browser.until(lambda: focused(browser, "id", "match"))
    browser.until(lambda: browser.rows("Destinations"))
    browser.press("Pending")
    browser.until(lambda: "sort=pending" in browser.driver.current_url)
    browser.until(lambda: browser.driver.switch_to.active_element.text == "Pending \u2193")
    browser.press("Events")
    browser.field("Severity").send_keys(Keys.ARROW_DOWN)
    browser.until(lambda: "severity=" in browser.driver.current_url)
    browser.until(lambda: focused(browser, "aria-label", "Severity"))


def test_a_name_is_shown_with_all_its_spaces_and_what_is_asked_in_lines(console: Console) -> None:
    name = "queue://two  spaces"
    console.publish("/queue/two  spaces", b"x")
    browser = console.go("destinations?match=two")
    browser.until(lambda: names(browser) == [name])
    browser.one("tbody .name").click()
    browser.until(lambda: browser.rows("Messages"))
    assert browser.one("h1").get_property("innerText") == name
    assert browser.rows("Messages")[0][4] == "1 byte"
    browser.press("Delete …")
    label = browser.one("dialog .check label")
    assert label.size["width"] > label.size["height"]  # and not a word on a line
    browser.keys(ESCAPE)


def test_of_a_queue_that_is_gone_nothing_is_shown_but_that(console: Console) -> None:
    console.publish("/queue/brief", b"x")
    browser = console.go(f"destination/{quote('queue://brief', safe='')}")
    browser.until(lambda: browser.rows("Messages"))
    console.ask("delete-destination", destination="queue://brief", with_messages=True)
    browser.shows("there is no queue 'queue://brief'")
    assert not [item for item in browser.all("main table, main button") if item.is_displayed()]
    console.publish("/queue/brief", b"other")
    browser.until(lambda: "other" in browser.one("main").text)
    assert "there is no queue" not in browser.text()
