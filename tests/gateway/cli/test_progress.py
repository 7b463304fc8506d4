"""Recovery shows a bar on a terminal, log lines elsewhere, and nothing when it is quick."""

import io
import logging

import pytest

from tidegate.cli._progress import LOG_SECONDS, QUIET_SECONDS, RecoveryProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_on_a_terminal_there_is_a_bar_that_goes_away() -> None:
    clock, stream = Clock(), Terminal()
    progress = RecoveryProgress(stream, now=clock)
    progress("rebuilding from the journal", 0, 200)
    assert stream.getvalue() == ""
    clock.now += QUIET_SECONDS
    progress("rebuilding from the journal", 50, 200)
    assert "rebuilding from the journal" in stream.getvalue()
    assert "25%" in stream.getvalue()
    progress("loading the checkpoint", 0, 0)  # nobody knows how much there is
    assert "loading the checkpoint" in stream.getvalue()
    progress.close()
    length = len(stream.getvalue())
    progress("rebuilding from the journal", 200, 200)
    progress.close()
    assert len(stream.getvalue()) == length


def test_elsewhere_there_is_a_log_line_every_few_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    progress = RecoveryProgress(io.StringIO(), now=clock)
    with caplog.at_level(logging.INFO, "tidegate.recovery"):
        for done in range(200):
            progress("replaying the journal", done, 200)
            clock.now += LOG_SECONDS / 100
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("replaying the journal: 5% done")


def test_a_quick_recovery_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), io.StringIO()
    progress = RecoveryProgress(stream, now=clock)
    with caplog.at_level(logging.INFO, "tidegate.recovery"):
        progress("replaying the journal", 1, 2)
        clock.now += QUIET_SECONDS / 2
        progress("replaying the journal", 2, 2)
    progress.close()
    assert stream.getvalue() == ""
    assert not caplog.records


def test_who_stood_by_begins_when_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), Terminal()
    bars, lines = RecoveryProgress(stream, now=clock), RecoveryProgress(io.StringIO(), now=clock)
    with caplog.at_level(logging.INFO, "tidegate.recovery"):
        for progress in (bars, lines):
            progress.stands_by()
        clock.now += 3600
        for progress in (bars, lines):
            progress.stands_by()
            progress("replaying the journal", 0, 200)
        assert (stream.getvalue(), caplog.messages) == ("", [])  # it is quick as far as is known
        clock.now += QUIET_SECONDS
        for progress in (bars, lines):
            progress("replaying the journal", 1, 2)
            progress.close()
    assert "50%" in stream.getvalue()
    assert caplog.messages == ["replaying the journal: 50% done, 0 s so far"]
