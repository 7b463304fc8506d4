"""What waits for a client whose connection the broker ends."""

from typing import Any

import pytest

from tidegate.spi import AccessError, ConnectionEndedError
from tidegate_protocols._output import Output


class FakeLink:
    def __init__(self, unsent_bytes):
        self.unsent_bytes = unsent_bytes
        self.is_aborted = False

    def abort(self):
        self.is_aborted = True


class FakeLarge:
    def __init__(self, is_busy):
        self.is_busy = is_busy

    def cancel(self):
        self.is_busy = False


@pytest.mark.parametrize(("unsent", "busy"), [(1, None), (0, True), (1, False)])
def test_it_does_not_go_out_when_a_right_is_gone(unsent, busy):
    link: Any = FakeLink(unsent)
    large: Any = None if busy is None else FakeLarge(busy)
    output = Output(link)
    output._large = large
    assert output.has_unsent
    output.withhold(ConnectionEndedError("shutdown", "over"))
    assert not link.is_aborted
    output.withhold(AccessError("no"))
    assert link.is_aborted
    assert not output.is_streaming


@pytest.mark.parametrize("busy", [None, False])
def test_nothing_that_waits_nothing_to_withhold(busy):
    link: Any = FakeLink(0)
    large: Any = None if busy is None else FakeLarge(busy)
    output = Output(link)
    output._large = large
    output.withhold(AccessError("no"))
    assert not link.is_aborted
