"""Which plugins this host can run."""

import pytest

from tidegate.spi import SPI_VERSION
from tidegate.spi.version import is_supported

MAJOR, MINOR = SPI_VERSION


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((MAJOR, MINOR), True),
        ((MAJOR, 0), True),
        ((MAJOR, MINOR + 1), False),
        ((MAJOR + 1, 0), False),
        ((MAJOR - 1, MINOR), False),
    ],
)
def test_the_major_number_is_equal_and_the_minor_number_not_above_ours(
    wanted: tuple[int, int], expected: bool
) -> None:
    assert is_supported(wanted) is expected
