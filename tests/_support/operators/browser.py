"""The system's Chromium, headless, driven through its own driver; nothing is downloaded.

`.ci/run` installs both. What a page logs as an error, such as what its policy forbids, fails the test.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")

#: How long a page may take to show something, on a busy machine.
PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.05


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed; .ci/run says how"
    return found


@contextmanager
def chromium(profile: Path, *, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser with a profile of its own in *profile*."""
    options = Options()
    options.binary_location = _program("chromium")
    for argument in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--lang=en-GB",
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:  # its sandbox wants an ordinary user
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(_program("chromedriver")))
    try:
        driver.set_page_load_timeout(PATIENCE_S)
        driver.set_script_timeout(PATIENCE_S)
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What tests do in a page: as a person does, by names and labels."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def until(self, look: Callable[[], T | None]) -> T:
        """What *look* finds, as soon as it finds something."""

        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except StaleElementReferenceException:
                pass  # made anew meanwhile
            time.sleep(_LOOK_EVERY_S)
        raise AssertionError(f"not seen; the page shows:\n{self.text()}")

    def text(self) -> str:
        """All that is to be read."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def shows(self, *texts: str) -> None:
        """Wait until all of *texts* can be read."""
        for text in texts:
            self.until(lambda text=text: text in self.text())

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """The first that is seen."""
        return self.until(
            lambda: next((item for item in self.all(css) if item.is_displayed()), None)
        )

    def press(self, name: str, *, within: str = "body") -> None:
        """Press the button or link called *name*."""

        def found() -> WebElement | None:
            for item in self.all(f"{within} button, {within} a, {within} summary"):
                if item.is_displayed() and item.is_enabled() and item.text.strip() == name:
                    return item
            return None

        self.until(lambda: pressed(found()))

    def field(self, label: str) -> WebElement:
        """What is labelled *label*."""
        path = f"//*[@id=(//label[normalize-space()={quoted(label)}]/@for)]"
        labelled = f"//*[@aria-label={quoted(label)}]"
        return self.until(
            lambda: next(
                (
                    item
                    for item in self.driver.find_elements(By.XPATH, f"{path}|{labelled}")
                    if item.is_displayed()
                ),
                None,
            )
        )

    def fill(self, label: str, text: str) -> WebElement:
        field = self.field(label)
        field.send_keys(
            Keys.CONTROL, "a"
        )  # to clear it would be to leave it, and to have changed it
        field.send_keys(text)
        return field

    def keys(self, *keys: str) -> None:
        """Press keys, wherever one is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def rows(self, caption: str) -> list[list[str]]:
        """Texts of the cells of the table called *caption*."""
        script = """
            const table = [...document.querySelectorAll('table')].find(
                (item) => item.caption && item.caption.textContent === arguments[0]);
            return table ? [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText)) : [];
        """
        return self.driver.execute_script(script, caption)

    def is_dark(self, dark: bool) -> None:
        """As the system's setting."""
        value = "dark" if dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": value}]},
        )

    def errors(self) -> list[str]:
        """What the page has logged as an error since the last call; an answer that is one is no fault of it."""
        logged = self.driver.get_log("browser")
        return [
            item["message"]
            for item in logged
            if item["level"] == "SEVERE" and "Failed to load resource" not in item["message"]
        ]


def pressed(item: WebElement | None) -> bool:
    if item is None:
        return False
    try:
        item.click()
    except (
        ElementClickInterceptedException
    ):  # behind the bar, to a driver that thinks it is in view
        item.parent.execute_script("arguments[0].scrollIntoView({block: 'center'})", item)
        return False
    return True


def quoted(text: str) -> str:
    """*text* in XPath, which has no escapes."""
    parts = ', "\'", '.join(f"'{part}'" for part in text.split("'"))
    return f"concat({parts}, '')"


ENTER, ESCAPE, TAB = Keys.ENTER, Keys.ESCAPE, Keys.TAB
