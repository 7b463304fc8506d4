"""The console in a browser: messages are looked at, published, and taken back from dead-letter queues."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from browser import ENTER, Browser
from console import Console

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"


def place_of(destination: str, page: str = "destination") -> str:
    return f"{page}/{quote(destination, safe='')}"


def bodies(browser: Browser, column: int = 3) -> list[str]:
    return [row[column] for row in browser.rows("Messages")]


def body(browser: Browser) -> str:
    return str(browser.one("pre.body").get_property("textContent"))


def open_first(browser: Browser) -> None:
    browser.until(lambda: browser.rows("Messages"))
    browser.press(browser.rows("Messages")[0][1])


def test_a_body_is_shown_as_json_text_and_hex_as_it_is(console: Console) -> None:
    sent = b'{"big":12345678901234567890,"a":1.0,"a":[],"s":"{x, y}","n":{"k":[1,null]}}'
    console.publish("/queue/json", sent, kind="test")
    browser = console.go(place_of("queue://json"))
    open_first(browser)
    browser.shows("Message ", "kind", "test", "Priority")
    shown = body(browser)
    lines = shown.split("\n")
    assert lines[:4] == ["{", '  "big": 12345678901234567890,', '  "a": 1.0,', '  "a": [],']
    assert json.loads(shown) == json.loads(sent)
    assert '"s": "{x, y}"' in shown
    browser.press("Text")
    browser.until(lambda: body(browser) == sent.decode())
    browser.press("Hex")
    browser.until(lambda: body(browser).startswith("00000000  7b 22 62 69 67 22 3a 31"))
    assert browser.one("button[aria-pressed=true]").text == "Hex"


def test_what_is_no_text_is_shown_as_hex_and_what_is_long_in_part(console: Console) -> None:
    console.publish("/queue/binary", bytes(range(256)))
    browser = console.go(place_of("queue://binary"))
    open_first(browser)
    browser.until(lambda: body(browser).split("\n")[1].startswith("00000010  10 11 12"))
    assert [item.text for item in browser.all("button[aria-pressed]")] == ["Hex"]
    console.publish("/queue/long", "\u20ac".encode() * (500 << 10))
    browser = console.go(place_of("queue://long"))
    open_first(browser)
    browser.shows("1.46 MiB", "The first 1 MiB are shown.")
    assert set(body(browser)) == {"\u20ac"}


def test_a_hostile_body_header_and_reason_are_text(console: Console) -> None:
    console.publish("/queue/hostile", HOSTILE.encode(), x=HOSTILE)
    browser = console.go(place_of("queue://hostile"))
    browser.until(lambda: bodies(browser) == [HOSTILE])
    open_first(browser)
    browser.until(lambda: body(browser) == HOSTILE)
    assert HOSTILE in browser.text().replace("\n", " ").partition("Headers")[2]
    assert not browser.all("img:not(.brand img)")
    assert not browser.all("main script")
    assert browser.driver.title == "queue://hostile - Tidegate"


def test_messages_are_paged_chosen_by_selector_and_some_of_them_purged(console: Console) -> None:
    for number in range(30):
        console.publish("/queue/paged", b"%d" % number, kind="odd" if number % 2 else "even")
    browser = console.go(place_of("queue://paged"))
    browser.until(lambda: bodies(browser) == [str(n) for n in range(25)])
    browser.press("Next \u2192")
    browser.until(lambda: bodies(browser) == [str(n) for n in range(25, 30)])
    browser.fill("Selector", "kind = 'odd'")
    browser.press("Filter")
    browser.until(lambda: bodies(browser) == [str(n) for n in range(1, 30, 2)])
    for number in (0, 1, 4):
        browser.all("tbody input[type=checkbox]")[number].click()
    browser.press("Purge chosen \u2026")
    browser.shows("This removes 3 chosen messages of queue://paged.", "Can be undone")
    assert browser.driver.switch_to.active_element.text == "Cancel"
    browser.press("Purge 3 chosen messages")
    browser.shows("3 messages were purged. They are kept in queue://$purged.")
    browser.until(lambda: bodies(browser)[:4] == ["5", "7", "11", "13"])
    assert console.pending("queue://paged") == 27
    # One of them back, and the others.
    browser.shows("Purged, and kept")
    browser.press("3 messages")
    browser.until(lambda: bodies(browser) == ["1", "3", "9"])
    browser.all("[aria-label=Messages] tbody input")[1].click()
    browser.press("Undo chosen")
    browser.shows("1 message was brought back.")
    browser.until(lambda: bodies(browser) == ["1", "9"])
    assert console.pending("queue://paged") == 28
    browser.press("Undo purge")
    browser.until(lambda: browser.one("h1").text == "queue://paged")
    assert console.pending("queue://paged") == 30
    assert not console.look("list-purged")["rows"]
    browser.fill("Selector", "kind = ")
    browser.press("Filter")
    browser.shows("selector")


def test_a_message_is_published_and_seen(console: Console) -> None:
    console.ask("create-destination", destination="queue://written")
    browser = console.go(place_of("queue://written"))
    browser.press("Publish \u2026")
    browser.fill("Body", '{"gr\u00fc\u00dfe": 1}')
    browser.fill("Content type", "application/json")
    browser.fill("Headers", "no colon")
    browser.press("Publish", within="dialog")
    browser.shows("is not a header: write name:value")
    browser.fill("Headers", "kind: test:1")
    browser.press("Publish", within="dialog")
    browser.shows("The message was published to queue://written, and is durable.")
    open_first(browser)
    browser.shows("application/json", "test:1")
    assert json.loads(body(browser)) == {"gr\u00fc\u00dfe": 1}


def test_dead_letters_are_looked_at_and_go_back_some_or_all(console: Console) -> None:
    console.publish("/queue/work", *[b"%d" % number for number in range(6)])
    console.reject("/queue/work", 6)
    assert console.pending("queue://work") == 0
    browser = console.go("dead-letters")
    browser.until(
        lambda: (
            ["queue://DLQ.work", "6"] in [row[:2] for row in browser.rows("Queues of dead letters")]
        )
    )
    browser.press("queue://DLQ.work")
    browser.until(lambda: bodies(browser, 5) == [str(n) for n in range(6)])
    first = browser.rows("Messages")[0]
    assert first[2:4] == ["queue://work", "rejected after 1 delivery"]
    for number in (1, 2, 4):
        browser.all("[aria-label=Messages] tbody input")[number].click()
    browser.press("Retry chosen")
    browser.shows("3 messages were moved back.")
    browser.until(lambda: bodies(browser, 5) == ["0", "3", "5"])
    assert console.pending("queue://work") == 3
    browser.press("Retry all \u2026")
    browser.shows("Each of its 3 pending messages goes back")
    browser.press("Retry all", within="dialog")
    browser.shows("3 messages of queue://DLQ.work were moved back.")
    browser.shows("There are no messages.")
    assert console.pending("queue://work") == 6


def test_dead_letters_go_back_by_group_all_or_some_of_them(console: Console) -> None:
    for queue, count in (("bills", 5), ("mails", 3)):
        console.publish(f"/queue/{queue}", *[b"%d" % number for number in range(count)])
        console.reject(f"/queue/{queue}", count)
    # A policy could have all of them go to one queue.
    console.ask("move-messages", destination="queue://DLQ.mails", target="queue://DLQ.bills")
    console.publish("/queue/DLQ.bills", b"mine")
    browser = console.go(place_of("queue://DLQ.bills", "dead-letter"))
    why = "rejected after 1 delivery"
    expected = [
        ("queue://bills", why, "5"),
        ("queue://mails", why, "3"),
        ("unknown", "unknown", "1"),
    ]
    browser.until(lambda: groups(browser) == expected)
    browser.shows("9 messages in 3 groups.")
    browser.field(f"Choose queue://mails: {why}").click()
    browser.press("Show them")
    browser.until(lambda: [row[2] for row in browser.rows("Messages")] == ["queue://mails"] * 3)
    browser.field(f"Choose queue://bills: {why}").click()
    browser.shows("2 chosen groups, 8 messages:")
    browser.press("Retry groups \u2026")
    browser.shows(
        "5 messages from queue://bills: rejected", "3 messages from queue://mails: rejected"
    )
    browser.fill("At most", "2").send_keys(ENTER)
    browser.shows("4 messages of queue://DLQ.bills were moved back.")
    expected = [
        ("queue://bills", why, "3"),
        ("queue://mails", why, "1"),
        ("unknown", "unknown", "1"),
    ]
    browser.until(lambda: groups(browser) == expected)
    assert (console.pending("queue://bills"), console.pending("queue://mails")) == (2, 2)
    browser.field("Choose unknown: unknown").click()
    browser.press("Purge groups \u2026")
    browser.shows("1 message from unknown: unknown")
    assert browser.driver.switch_to.active_element.text == "Cancel"
    browser.press("Purge 1 message")
    browser.until(lambda: groups(browser) == expected[:2])
    assert console.pending("queue://DLQ.bills") == 4
    # And the group is back.
    browser.shows("Purged, and kept")
    browser.press("Undo")
    browser.until(lambda: groups(browser) == expected)
    assert not console.look("list-purged")["rows"]


def groups(browser: Browser) -> list[tuple[str, ...]]:
    """Where they come from, why, and how many."""
    return [tuple(row[1:4]) for row in browser.rows("Why they are here")]
