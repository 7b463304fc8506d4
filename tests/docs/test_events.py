"""docs/events.md has every event, as it is."""

from __future__ import annotations

from pathlib import Path

from tidegate.broker.events import BURST, KEPT_BYTES_MAX, KEPT_MAX
from tidegate.spi.events import EVENTS, EventKind
from tidegate.spi.operate import EVENT_WAIT_MAX_S

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "events.md"


def rows() -> str:
    found = ["| Event | Kind | Severity | When |", "| --- | --- | --- | --- |"]
    found += [
        f"| `{event.value}` | {meaning.kind.value} | {meaning.severity.value} | {meaning.text} |"
        for event, meaning in EVENTS.items()
    ]
    return "\n".join(found) + "\n"


def test_the_document_has_all_events_as_they_are() -> None:
    written = DOCUMENT.read_text().partition("<!-- events -->\n")[2].partition("<!-- end -->")[0]
    assert written == rows()


def test_the_document_has_the_bounds_as_they_are() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"the last {KEPT_MAX:,} of each kind, at most {KEPT_BYTES_MAX >> 20} MiB" in text
    assert f"{len(EventKind) * KEPT_BYTES_MAX >> 20} MiB for all kinds" in text
    assert f"up to {BURST} events of one name a second" in text
    assert f"`wait_s` (up to {EVENT_WAIT_MAX_S:g})" in text
