"""Batches are whole and in order, whatever happens concurrently."""

from __future__ import annotations

import asyncio
from pathlib import Path

import hypothesis
import pytest
from hypothesis.stateful import run_state_machine_as_test

from tidegate.spi import (
    Acknowledge,
    Discard,
    DiscardReason,
    MessageStoreFactory,
    Move,
    RecordDelivery,
    StoreCapabilities,
)
from tidegate.testing._store_kit.box import OTHER, QUEUE, StoreBox, StoreFixtures, add, text
from tidegate.testing._store_machine import (
    STORE_MACHINE_SETTINGS,
    StoreHangsError,
    StoreMachine,
)


class StoreOrder(StoreFixtures):
    """Atomicity and order, alone and with concurrent readers, and the comparison with the reference."""

    @pytest.fixture
    def machine_settings(self) -> hypothesis.settings:
        """How long the model-based test runs."""
        return STORE_MACHINE_SETTINGS

    async def test_operations_of_one_batch_see_those_before_them(self, box: StoreBox) -> None:
        await box.open()
        await box.write(
            QUEUE,
            OTHER,
            add(1),
            add(2),
            RecordDelivery(1, (2,), (1,)),
            Acknowledge(1, (1,)),
            Move(1, 2, 2, 3, text(3)),
            Discard(2, (3,), DiscardReason.PURGED),
            add(4),
        )
        assert await box.sequences(1) == [4]
        assert await box.sequences(2) == []

    async def test_pages_read_beside_writes_have_no_gaps(self, box: StoreBox) -> None:
        await box.open(QUEUE)
        is_written = False

        async def write() -> None:
            nonlocal is_written
            for first in range(1, 501, 10):
                await box.write(*[add(number) for number in range(first, first + 10)])
            is_written = True

        async def read() -> None:
            seen = 0
            while not is_written:
                page = await box.page(1)
                assert [stored.sequence for stored in page] == list(range(1, len(page) + 1))
                assert len(page) >= seen
                seen = len(page)
                # A loop that only ever polls would starve the store's threads of the interpreter.
                await asyncio.sleep(0.001)

        await asyncio.gather(write(), read())
        assert await box.sequences() == list(range(1, 501))

    async def test_a_batch_is_seen_whole_or_not_at_all(self, box: StoreBox) -> None:
        """Whoever sees its first message must find its last one."""
        await box.open(QUEUE, OTHER)
        is_written = False

        async def write() -> None:
            nonlocal is_written
            for first in range(1, 401, 4):
                await box.write(
                    *[add(number) for number in range(first, first + 3)], add(first + 3, 2)
                )
            is_written = True

        async def read() -> None:
            while not is_written:
                seen = await box.sequences(1)
                assert len(await box.sequences(2)) >= -(-len(seen) // 3)
                await asyncio.sleep(0)

        await asyncio.gather(write(), read())

    @pytest.mark.hypothesis
    def test_any_sequence_of_operations_gives_what_the_reference_gives(
        self,
        store_factory: MessageStoreFactory,
        store_options: object,
        tmp_path: Path,
        capabilities: StoreCapabilities,
        machine_settings: hypothesis.settings,
    ) -> None:
        made: list[Path] = []

        def machine() -> StoreMachine:
            directory = tmp_path / str(len(made))
            directory.mkdir()
            made.append(directory)
            return StoreMachine(store_factory, store_options, directory, capabilities)

        try:
            run_state_machine_as_test(machine, settings=machine_settings)  # type: ignore[no-untyped-call]
        except StoreHangsError as error:
            raise TimeoutError("the store's close() hangs") from error
        assert len(made) > 1
