"""The console in a browser: who may do what, and what it shows while its gateway is gone."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from browser import ENTER
from console import Console

from tidegate_auth_file._hashes import make_hash

pytestmark = pytest.mark.long

RULES = """
[[rules]]
allow = "connect"

[[rules]]
allow = ["admin", "all"]
principals = "local:{me}"

[[rules]]
allow = "admin"
principals = "ann"
"""


def EXTRA(directory: Path) -> str:
    """Ann may look, Ben may not even do that."""
    rules = RULES.replace("{me}", pwd.getpwuid(os.getuid()).pw_name)
    hashed = make_hash("pässword:1", memory_kib=64, time_cost=1).written()
    for name, text in (("users", f"ann:{hashed}\nben:{hashed}\n"), ("acl.toml", rules)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    return f"""
[[extensions]]
plugin = "auth-file"
users = "{directory}/users"

[[extensions]]
plugin = "acl"
rules = "{directory}/acl.toml"
"""


def log_in(console: Console, name: str, password: str) -> None:
    browser = console.browser
    browser.open(console.url)
    browser.driver.execute_script("sessionStorage.clear()")
    browser.open(console.url)
    browser.press("User name and password instead")
    browser.fill("User name", name)
    browser.fill("Password", password)
    browser.press("Log in")


def test_a_user_has_the_rights_that_the_rules_give_and_is_told_of_others(console: Console) -> None:
    console.ask("create-destination", destination="queue://theirs")
    browser = console.browser
    log_in(console, "ann", "wrong")
    browser.shows("That is not accepted")
    log_in(console, "ben", "pässword:1")
    browser.until(lambda: browser.one(".problem").text)
    assert "Log in" in browser.text()
    log_in(console, "ann", "pässword:1")
    browser.shows("Ready: clients are let in")
    stored = "return JSON.stringify({...sessionStorage, ...localStorage})"
    assert browser.driver.execute_script(stored) == "{}"  # no password is kept
    browser.press("Destinations")
    browser.press("queue://theirs")
    browser.until(lambda: browser.one(".card .problem").text)  # she may not browse
    browser.press("Publish …")
    browser.press("Publish", within="dialog")
    browser.until(lambda: browser.one("dialog .problem").text)
    assert console.pending("queue://theirs") == 0
    browser.press("Cancel")
    browser.driver.refresh()
    browser.shows("Token")


def test_who_may_not_drain_sees_it_disabled_with_why(console: Console) -> None:
    browser = console.browser
    log_in(console, "ann", "pässword:1")
    browser.press("Drain")
    drain = "//main//button[normalize-space()='Drain …']"
    browser.until(lambda: browser.driver.find_element("xpath", drain).is_enabled())
    rules = console.gateway.directory / "acl.toml"
    before = rules.read_text()
    rules.write_text(before.replace('principals = "ann"', 'principals = "nobody"'))
    try:
        console.ask("reload-configuration")
        browser.until(lambda: not browser.driver.find_element("xpath", drain).is_enabled())
        button = browser.driver.find_element("xpath", drain)
        why = browser.one(f"#{button.get_attribute('aria-describedby')}")
        assert "ann" in why.text
        assert "admin" in why.text
    finally:
        rules.write_text(before)
        console.ask("reload-configuration")
    browser.until(lambda: browser.driver.find_element("xpath", drain).is_enabled())


def test_access_is_explained_and_users_are_listed(console: Console) -> None:
    browser = console.go("access")
    me = pwd.getpwuid(os.getuid()).pw_name
    expected = [["1", "allow", "everybody", "line 2"]]
    expected += [["2", "allow", f"principals local:{me}", "line 5"]]
    expected += [["3", "allow", "principals ann", "line 9"]]
    browser.until(
        lambda: [[row[n] for n in (0, 1, 4, 5)] for row in browser.rows("Rules")] == expected
    )
    browser.fill("Search", "NN").send_keys(ENTER)
    browser.until(lambda: [row[0] for row in browser.rows("Rules")] == ["3"])
    browser.field("Action").send_keys("publish")
    browser.shows("Nothing matches.")
    browser.fill("User", "ann")
    browser.fill("Destination", "queue://a")
    browser.press("Show")
    browser.until(lambda: ["publish", "refused"] in [row[:2] for row in decided(console)])
    browser.press("All users")
    browser.until(lambda: [row[0] for row in browser.rows("Users")] == ["ann", "ben"])
    browser.press("ann")
    browser.until(lambda: ["admin", "allowed"] in [row[:2] for row in decided(console)])


def test_who_may_do_what_with_a_destination_is_listed_and_leads_to_why(console: Console) -> None:
    browser = console.go("access?destination=queue%3A%2F%2Fa")
    caption = "Who may do what there"
    browser.until(lambda: [row[0] for row in browser.rows(caption)] == ["ann", "anonymous", "ben"])
    assert {row[3] for row in browser.rows(caption)} == {"refused"}
    browser.fill("Search", "NN").send_keys(ENTER)
    browser.until(lambda: [row[0] for row in browser.rows(caption)] == ["ann"])
    browser.press("ann")
    browser.until(lambda: ["consume", "refused"] in [row[:2] for row in decided(console)])
    browser.until(lambda: len(browser.rows(caption)) == 3)
    browser.fill("Destination", "topic://t.>")
    browser.press("Show")
    browser.shows("without wildcards")


def decided(console: Console) -> list[list[str]]:
    return console.browser.rows("What they may do")


def test_the_store_its_files_and_plugins_are_shown(console: Console) -> None:
    console.ask("publish-message", destination="queue://kept", body="eA==")
    browser = console.go("store")
    browser.shows("writable", "survives a power cut", "On disk")
    browser.until(lambda: browser.rows("Files"))
    name = next(row[0] for row in browser.rows("Files") if row[5] != "0")
    browser.press(name)
    browser.until(
        lambda: ["queue", "queue://kept"] in [row[:2] for row in browser.rows("What keeps it")]
    )
    browser.press("Plugins")
    browser.until(lambda: ["store-journal", "yes"] in [row[:2] for row in browser.rows("Plugins")])


def test_a_gateway_that_is_gone_is_said_to_be_and_comes_back(console: Console) -> None:
    console.ask("create-destination", destination="queue://there")
    browser = console.go("destination/queue%3A%2F%2Fthere")
    browser.shows("Delete …")
    console.gateway.kill()
    browser.shows("the gateway does not answer. The values shown are from")
    browser.press("Delete …")  # what cannot be asked for is told
    assert browser.one(".notice.bad").text.startswith("the gateway does not answer")
    browser.press("Destinations")
    browser.until(lambda: browser.one("main .problem").text == "the gateway does not answer")
    assert "There are no destinations" not in browser.text()  # nobody knows
    browser.press("Events")
    browser.shows("trying again")
    console.gateway.start()
    browser.shows("live")
    browser.until(lambda: browser.rows("Events"))
    browser.until(lambda: not browser.one(".content").text.count("the gateway does not answer"))
    browser.press("Overview")
    browser.shows("Ready", "running")


def test_a_token_of_any_characters_is_not_accepted_and_no_riddle(console: Console) -> None:
    browser = console.browser
    browser.open(console.url)
    browser.driver.execute_script("sessionStorage.clear()")
    browser.open(console.url)
    browser.fill("Token", "no ☃ token")
    browser.press("Log in")
    browser.shows("That is not accepted. Is it the token of this gateway")
    browser.press("User name and password instead")
    browser.fill("User name", "ann")
    browser.fill("Password", "☃")
    browser.press("Log in")
    browser.shows("Are both the user name and the password right?")


def test_in_a_narrow_window_the_menu_shows_where_one_is(console: Console) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser = console.log_in()
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.driver.execute_script("location.hash = '#/store'")
        browser.until(lambda: browser.one("[aria-current=page]").text == "Store")
        left, right = browser.driver.execute_script(
            "const {left, right} = document.querySelector('[aria-current=page]').getBoundingClientRect();"
            "return [left, right]"
        )
        assert 0 <= left < right <= 360
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
