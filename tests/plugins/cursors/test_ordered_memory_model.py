"""Messages in memory beside a plain list that is always sorted, under all that a cursor does with them.

What comes back is put in order when somebody looks: here many bring back, in any order, before anybody does. Where
few are looked for one by one, and where all are gone through, depends on how many there are: the bounds are low
here, so that a handful meets each of the ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, Message, StoredMessage
from tidegate_cursors import _ordered_memory
from tidegate_cursors._ordered_memory import OrderedMemory

ANY = 1 << 40

_sizes = st.lists(st.integers(0, 99), max_size=12)


def cost_of(messages: list[StoredMessage]) -> int:
    return sum(message.size + MESSAGE_OVERHEAD_BYTES for message in messages)


class MemoryMachine(RuleBasedStateMachine):
    """*here* is what the memory has, in order; *out* what was taken of it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = OrderedMemory()
        self.here: list[StoredMessage] = []
        self.out: list[StoredMessage] = []
        self.out_to = 0
        self.last = 0

    def _new(self, sizes: list[int]) -> list[StoredMessage]:
        made: list[StoredMessage] = []
        for size in sizes:
            self.last += 1 + size % 2
            made.append(StoredMessage.of(self.last, Message("queue://q", bytes(size))))
        return made

    def _taken(self, messages: list[StoredMessage]) -> None:
        self.here = [message for message in self.here if message not in messages]
        self.out += messages
        self.out_to = max([self.out_to, *(message.sequence for message in messages)])

    def _some(self, data: st.DataObject) -> tuple[set[int], list[StoredMessage]]:
        """Sequences of some that are here and of some that are not; and those that are."""
        known = [message.sequence for message in [*self.here, *self.out]]
        every = data.draw(st.integers(1, 4), "every")
        first = data.draw(st.integers(0, len(known)), "first")
        count = data.draw(st.sampled_from([1, 2, 5, 100]), "count")
        wanted = {*known[first::every][:count], self.last + 5}
        return wanted, [message for message in self.here if message.sequence in wanted]

    @rule(sizes=_sizes)
    def append(self, sizes: list[int]) -> None:
        new = self._new(sizes)
        assert self.memory.append(new) == sum(sizes)
        self.here += new

    @rule(sizes=_sizes, room=st.integers(-1000, 5000), count=st.integers(1, 40))
    def append_within(self, sizes: list[int], room: int, count: int) -> None:
        new = self._new(sizes)
        limit = cost_of(self.here) + room
        kept = self.memory.append_within(new, limit, count)
        fits = len(self.here) + kept <= count and cost_of([*self.here, *new[:kept]]) <= limit
        assert fits or not kept or (not self.here and kept == 1)
        if kept < len(new):  # the next one had no room
            more = [*self.here, *new[: kept + 1]]
            assert len(more) > count or cost_of(more) > limit
        self.here += new[:kept]

    @rule(limit=st.integers(0, 40), bytes_max=st.sampled_from([0, 50, 500, ANY]))
    def take(self, limit: int, bytes_max: int) -> None:
        found = list(self.memory.take(limit, bytes_max))
        assert found == self.here[: len(found)]
        assert len(found) <= limit
        assert bool(found) is bool(limit and self.here)
        assert sum(message.size for message in found) <= bytes_max or len(found) == 1
        if 0 < len(found) < min(limit, len(self.here)):  # the next one would have been too much
            assert sum(message.size for message in self.here[: len(found) + 1]) > bytes_max
        self._taken(found)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), consumers=st.integers(1, 4))
    def put_back(self, data: st.DataObject, consumers: int) -> None:
        """Each of some consumers has every so many-th of what is out, and brings it back."""
        for _ in range(consumers):
            first = data.draw(st.integers(0, len(self.out)), "first")
            every = data.draw(st.integers(1, 4), "every")
            back = self.out[first::every]
            if data.draw(st.booleans(), "backwards"):
                back.reverse()
            self.out = [message for message in self.out if message not in back]
            self.memory.put_back(back)
            self.here = sorted([*self.here, *back], key=lambda message: message.sequence)

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        wanted, known = self._some(data)
        assert self.memory.claim(wanted) == {message.sequence for message in known}
        self._taken(known)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        wanted, known = self._some(data)
        assert self.memory.remove(wanted) == len(known)
        self.here = [message for message in self.here if message not in known]

    @rule(floor=st.sampled_from([0, 1000, 3000, ANY]))
    def drop_behind(self, floor: int) -> None:
        dropped = self.memory.drop_behind(self.out_to, floor)
        kept = self.here[: len(self.here) - dropped]
        assert all(message.sequence > self.out_to for message in self.here[len(kept) :])
        assert not dropped or (kept and cost_of(self.here[: len(kept) + 1]) > floor)
        if len(kept) > 1 and kept[-1].sequence > self.out_to:
            assert cost_of(kept) <= floor
        self.here = kept

    @rule()
    def look(self) -> None:
        assert list(self.memory.in_order()) == self.here
        assert list(self.memory.messages) == self.here

    @rule()
    def clear(self) -> None:
        self.memory.clear()
        self.here = []

    @invariant()
    def it_knows_what_it_has(self) -> None:
        assert len(self.memory) == len(self.here)
        assert self.memory.memory_bytes == cost_of(self.here)

    def teardown(self) -> None:
        assert list(self.memory.take(ANY, ANY)) == self.here
        assert (len(self.memory), self.memory.memory_bytes) == (0, 0)


SETTINGS = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


#: Enough for each fault, and the first case that shows it will do.
FAULT_SETTINGS = settings(SETTINGS, max_examples=200, phases=[Phase.generate], derandomize=True)


@pytest.fixture(params=[(64, 200), (2, 1), (2, 0), (0, math.inf)], ids=str)
def bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    singly_max, cost = request.param
    monkeypatch.setattr(_ordered_memory, "_SINGLY_MAX", singly_max)
    monkeypatch.setattr(_ordered_memory, "_SINGLY_COST", cost)


@pytest.mark.usefixtures("bounds")
def test_it_is_a_sorted_list() -> None:
    run_state_machine_as_test(MemoryMachine, settings=SETTINGS)


# --- what the machine is to find ---------------------------------------------------------------------


def behind(self: OrderedMemory, messages: list[StoredMessage]) -> None:
    """The highest that came back first is forgotten when lower ones come."""
    _put_back(self, messages)
    if self._mixed:
        self._back_to = max([message.sequence for message in messages], default=0)


def hasty(self: OrderedMemory, messages: list[StoredMessage]) -> None:
    """Only what comes back last is looked at."""
    _put_back(self, messages)
    if self._mixed:
        self._mixed = len(messages)


_put_back = OrderedMemory.put_back


@pytest.mark.long
@pytest.mark.parametrize("fault", [behind, hasty])
def test_the_machine_finds(fault: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderedMemory, "put_back", fault)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(MemoryMachine, settings=FAULT_SETTINGS)
