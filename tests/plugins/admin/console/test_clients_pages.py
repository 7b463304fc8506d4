"""The console in a browser: who is connected, what they left, what is near its limit."""

from __future__ import annotations

import asyncio

import pytest
from browser import Browser
from console import Console, connected
from wire import MqttClient

pytestmark = pytest.mark.long


def column(browser: Browser, caption: str, number: int = 0) -> list[str]:
    return [row[number] for row in browser.rows(caption)]


def test_a_connection_is_seen_with_what_it_consumes_and_ended(console: Console) -> None:
    console.publish("/queue/held", b"1", b"2", b"3")
    with connected(console, "/queue/held", client_id="<i>worker</i>") as ended:
        browser = console.go("connections")
        browser.until(lambda: "<i>worker</i>" in column(browser, "Connections"))
        browser.fill("Search", "WORKER")
        browser.press("Find")
        browser.until(lambda: column(browser, "Connections") == ["<i>worker</i>"])
        assert browser.rows("Connections")[0][5] == "3"
        browser.press("<i>worker</i>")
        browser.until(lambda: column(browser, "Subscriptions", 1) == ["queue://held"])
        browser.shows("Given", "3 messages")
        browser.press("End connection \u2026")
        browser.shows("Its client is told that an operator ended it")
        browser.press("End connection", within="dialog")
        browser.shows("was ended.")
        assert "operator" in ended.result(60)
        browser.shows("No client is connected.")


def test_of_a_connection_that_is_gone_nothing_is_shown_but_that(console: Console) -> None:
    with connected(console, "/queue/left", client_id="brief"):
        browser = console.go("connections")
        browser.press("brief")
        browser.shows("End connection \u2026", "Given")
    browser.shows("it may have ended")
    assert not [item for item in browser.all("main table, main button") if item.is_displayed()]


def test_a_session_and_its_subscription_are_seen_and_deleted(console: Console) -> None:
    async def leave() -> None:
        client = await MqttClient.connect(console.gateway.mqtt_port, "meter-7", clean=False)
        await client.subscribe("meters/+/power", 1)
        client.close()
        await client.writer.wait_closed()

    asyncio.run(leave())
    console.publish("/topic/meters.7.power", b"12", b"13")
    browser = console.go("sessions")
    browser.until(lambda: column(browser, "Sessions") == ["meter-7"])
    assert browser.rows("Sessions")[0][3] == "2"
    browser.press("meter-7")
    browser.until(lambda: column(browser, "Subscriptions") == ["topic://meters.*.power"])
    browser.press("topic://meters.*.power")
    browser.shows("Subscription to topic://meters.*.power", "durable", "nobody now")
    browser.driver.back()
    browser.press("Delete session \u2026")
    browser.shows("Its subscriptions end, and the messages that wait in them are lost.")
    browser.press("Delete", within="dialog")
    browser.shows("Session of meter-7 was deleted.", "There are no sessions")


def test_limits_and_cursors_are_listed_the_nearest_first(console: Console) -> None:
    console.publish("/queue/fed", b"x" * 1000)
    browser = console.go("limits")
    browser.until(lambda: "broker.connections_max" in column(browser, "Limits", 1))
    shares = [float(text.removesuffix(" %")) for text in column(browser, "Limits", 4)]
    assert shares == sorted(shares, reverse=True)
    browser.press("Cursors")
    browser.until(lambda: "queue://fed" in column(browser, "Cursors"))
    row = next(row for row in browser.rows("Cursors") if row[0] == "queue://fed")
    assert row[2:5] == ["store", "memory", "1"]


def test_memory_is_a_tree_whose_sums_add_up(console: Console) -> None:
    console.publish("/queue/remembered", *[b"x" * 1000] * 20)
    console.publish("/queue/given", *[b"y" * 1000] * 5)
    with connected(console, "/queue/given"):
        browser = console.go("memory")
        browser.until(lambda: "queue://remembered" in names(browser))
        browser.until(lambda: "anonymous" in names(browser))
        (user,) = [
            item
            for item in browser.all(".tree details details details > summary")
            if item.text.startswith("anonymous") and item.is_displayed()
        ][:1]
        user.click()
        # Its connection, for which something is held and in flight.
        browser.until(lambda: any(name.startswith("127.0.0.1:") for name in names(browser)))
        assert browser.driver.execute_script(SUMS) == []
        held = browser.rows("What is held for clients")
        assert "Sockets and clients" in [row[0] for row in held]
        # What is open stays open.
        browser.until(lambda: user.is_displayed())
        assert user.find_element("xpath", "..").get_attribute("open")


def names(browser: Browser) -> list[str]:
    return [item.text for item in browser.all(".tree .what") if item.is_displayed()]


#: Branches whose parts are not drawn as long as they are together.
SUMS = """
const length = (item) => parseFloat(item.querySelector(':scope > .row .meter > span, :scope > details > summary .meter > span').style.width);
return [...document.querySelectorAll('.tree details')].filter((item) => item.querySelector(':scope > ul > li')).map((item) => [
    length(item.parentElement), [...item.querySelectorAll(':scope > ul > li')].reduce((sum, part) => sum + length(part), 0)
]).filter(([whole, parts]) => !(Math.abs(whole - parts) < 0.01));
"""
