"""Gateways to attack: one for all tests of a process, and one of its own where that has other limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attack import Victim, connected, frame

#: Limits low enough to be reached in a moment.
LOW = """
connection_held_limit = "8mb"
pending_write_limit = "4mb"
login_input_limit = "8mb"
cursor_memory_limit = "8mb"
"""

#: What one principal may have. Without authentication everybody is the same one.
LOW_QUOTAS = """
[[destinations]]
match = "vm.>"
cursor = "vm"
memory_limit = "1mb"

[[quotas]]
principal = "*"
sessions_max = 40
subscriptions_max = 60
queues_max = 50
retained_limit = "4mb"
held_limit = "24mb"
"""


@pytest.fixture(scope="session")
def shared_victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with Victim(tmp_path_factory.mktemp("victim"), broker=LOW, extra=LOW_QUOTAS) as victim:
        with connected(victim) as client:  # its queue is there, whatever a quota says later
            client.flood([frame("SEND", b"x", destination="/queue/vm.headers", receipt="r")])
            client.until(b"RECEIPT")
        yield victim


@pytest.fixture
def victim(shared_victim: Victim) -> Victim:
    """The gateway that all tests attack, with low limits; its growth counts from here."""
    shared_victim.mark()
    return shared_victim


@pytest.fixture
def make_victim(tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    """Start a gateway with options of its own: those of :class:`Victim`."""
    with ExitStack() as stack:

        def make(**options: Any) -> Victim:
            directory = tmp_path / f"victim-{len(list(tmp_path.iterdir()))}"
            directory.mkdir()
            return stack.enter_context(Victim(directory, **options))

        yield make
