"""A client of each version that a test is for."""

import pytest


@pytest.fixture
def connected(harness, version):
    """The harness, with a client that has connected with *version*."""
    harness.connect(version)
    return harness
