"""What comes often is a line of the log now and then."""

import logging
import re

import pytest

from tidegate.spi.clients.seldom import LOG_EVERY_S, Seldom


def test_what_comes_often_is_logged_now_and_then_with_its_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seldom = Seldom(logging.getLogger("tidegate.transport"), "refused connections_max=%d")
    for second in (0.0, 1.0, LOG_EVERY_S - 0.1, LOG_EVERY_S):
        seldom.say(second, 1)
    assert re.findall(r"refused connections_max=1 count=(\d+)", caplog.text) == ["1", "3"]
