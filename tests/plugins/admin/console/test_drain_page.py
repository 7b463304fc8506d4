"""The console in a browser: a gateway is drained before it is stopped, its queues go elsewhere, and clients are let in again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from browser import Browser
from console import Console, connected
from gateway_process import GatewayProcess
from wire import StompClient

pytestmark = pytest.mark.long

OTHERS: list[GatewayProcess] = []


def EXTRA(directory: Path) -> str:
    """A bridge to another gateway, which is not running yet, and one that cannot take queues."""
    (directory / "other").mkdir()
    other = GatewayProcess(directory / "other")
    OTHERS[:] = [other]
    return f"""
[[extensions]]
plugin = "bridge"
name = "next"
remote = "stomp://127.0.0.1:{other.stomp_port}"
reconnect_min = "50ms"
reconnect_max = "200ms"

[[extensions]]
plugin = "bridge"
name = "meters"
remote = "mqtt://127.0.0.1:{other.mqtt_port}"
"""


def focused(browser: Browser) -> str:
    return browser.driver.switch_to.active_element.text


def test_a_gateway_is_drained_handed_over_and_lets_clients_in_again(console: Console) -> None:
    console.publish("/queue/orders", *[b"%d" % number for number in range(5)])
    console.publish("/queue/work", b"1", b"2")
    console.publish('/queue/<b class="x"', b"x")
    console.ask("pause-destination", destination='queue://<b class="x"', sides=["consumers"])
    with connected(console, "/queue/work", client_id="worker") as ended:
        browser = console.go("drain")
        browser.shows("clients are let in")
        browser.press("Drain …")
        (meters,) = [o for o in browser.all("dialog option") if o.text.startswith("meters")]
        assert not meters.is_enabled()
        assert "speaks MQTT" in meters.text
        browser.fill("Where clients should go", "b.example:61613")
        browser.field("Time to finish their work").send_keys("a day")
        browser.field("Messages in queues").send_keys("to stomp")
        browser.press("Continue …", within="dialog")
        browser.shows(
            "The one that is connected now can acknowledge what they have (2 messages)",
            "or after a day",
            "They are told to use b.example:61613.",
            "go to stomp://127.0.0.1",
            "8 messages are kept now.",
        )
        assert focused(browser) == "Cancel"
        browser.keys("\n")  # who presses Enter without reading drains nothing, and loses nothing
        browser.until(lambda: len(browser.all("dialog")) == 1)
        assert not console.look("show-drain")["is_draining"]
        assert browser.field("Where clients should go").get_attribute("value") == "b.example:61613"
        browser.press("Continue …", within="dialog")
        browser.press("Drain", within="dialog")
        caption = "Clients that it waits for"
        browser.until(lambda: browser.rows(caption))
        (waited,) = browser.rows(caption)
        assert (waited[0], waited[3]) == ("worker", "2 messages")
        browser.shows("starts when all clients have left", "b.example:61613")
        browser.press("Destinations")
        said = browser.one(".content > [role=status]")
        browser.until(lambda: said.text.startswith("Draining: the gateway accepts no more clients"))
        browser.press("Show progress")
        browser.press("worker")
        browser.press("End connection …")
        browser.press("End connection", within="dialog")
        assert ended.result(60)
    browser.press("Drain")
    browser.shows("not connected", "cannot be reached", "start it, or correct")
    with OTHERS[0] as other:
        browser.shows("done: no queue has anything more that can go", "connected to tidegate/")
        browser.shows("7 messages")
        left = browser.rows("What stays here")
        assert [row[:3] for row in left] == [["queue", 'queue://<b class="x"', "1"]]
        assert "resume it to hand it over" in left[0][3]
        assert asyncio.run(bodies(other, "/queue/orders", 5)) == [b"0", b"1", b"2", b"3", b"4"]
        browser.press("Let clients in again …")
        browser.shows("Messages that were moved do not come back.")
        browser.press("Let clients in", within="dialog")
        browser.until(lambda: not said.text)
        browser.shows("clients are let in")
    console.publish("/queue/orders", b"again")


async def bodies(gateway: GatewayProcess, queue: str, count: int) -> list[bytes]:
    client = await StompClient.connect(gateway.stomp_port)
    client.send("SUBSCRIBE", destination=queue, id="1", ack="auto")
    found = [(await client.receive()).body for _ in range(count)]
    await client.aclose()
    return found
