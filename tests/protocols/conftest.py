"""What the tests of all protocols share."""

import pytest

from tidegate_protocols.transport import _slices


@pytest.fixture(autouse=True)
def slices_end_in_no_test_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not decide how far a session comes at once."""
    monkeypatch.setattr(_slices, "SLICE_S", 60.0)
