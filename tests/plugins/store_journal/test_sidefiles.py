"""Bindings snapshot and live lists come back, or say that they are damaged."""

from __future__ import annotations

import pytest
from journal_kit import CrashStorage

from tidegate.spi import (
    InflightDirection,
    InflightRecord,
    InflightState,
    Message,
    Session,
    Subscription,
)
from tidegate_store_journal.checkpoint import sidefiles as _sidefiles
from tidegate_store_journal.checkpoint.sidefiles import (
    Bindings,
    LiveList,
    read_bindings,
    read_live_list,
    split_blocks,
    write_bindings,
    write_live_list,
)
from tidegate_store_journal.index.acklog import AckBlock
from tidegate_store_journal.log.format import FormatError, location

BINDINGS = Bindings(
    "0" * 32,
    7,
    20,
    4,
    9,
    5,
    [("queue://q", 1), ("topic://t", 0)],
    [Subscription(2, "c", "n", "topic://t", True)],
    [Session("c", 60)],
    [InflightRecord("c", InflightDirection.IN, 1, InflightState.RECEIVED)],
    [Message("topic://t", b"\x00retained", (("a", "b"),))],
    [1, 2],
)


def block(first: int, files: list[int]) -> AckBlock:
    return AckBlock(
        first,
        1,
        5,
        "c",
        "s",
        "p",
        tuple(100 + first + number for number in range(len(files))),
        [location(file_id, 4096, 10, 1) for file_id in files],
        tuple(range(len(files))),
    )


def test_bindings_survive_a_power_cut() -> None:
    storage = CrashStorage()
    assert read_bindings(storage) is None
    write_bindings(storage, BINDINGS)
    assert read_bindings(storage.crash()) == BINDINGS


def test_a_live_list_survives_a_power_cut_with_its_rows() -> None:
    storage = CrashStorage()
    assert read_live_list(storage, 3) is None
    live = LiveList("0" * 32, 3, 9, [(1, [5, 7]), (2, [5])], [block(4, [3, 3]).encode()])
    write_live_list(storage, live)
    found = read_live_list(storage.crash(), 3)
    assert found == live
    assert found is not None
    assert [list(item.sequences) for item in found.blocks()] == [[104, 105]]


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 40])
def test_a_damaged_snapshot_is_replaced_by_its_copy(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage = CrashStorage()
    write_bindings(storage, BINDINGS)
    storage.flip(_sidefiles.BINDINGS_NAME, offset)
    assert read_bindings(storage.crash()) == BINDINGS
    assert "its copy is used" in caplog.text


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 40])
def test_damage_of_both_is_noticed(offset: int) -> None:
    storage = CrashStorage()
    write_bindings(storage, BINDINGS)
    storage.flip(_sidefiles.BINDINGS_NAME, offset)
    storage.flip(_sidefiles.BINDINGS_COPY_NAME, offset)
    with pytest.raises(FormatError):
        read_bindings(storage)
    storage.unlink(_sidefiles.BINDINGS_COPY_NAME)  # as an older version left it
    with pytest.raises(FormatError):
        read_bindings(storage)


def test_a_copy_that_was_torn_does_no_harm_while_the_snapshot_is_whole() -> None:
    storage = CrashStorage()
    write_bindings(storage, BINDINGS)
    storage.flip(_sidefiles.BINDINGS_COPY_NAME, 12)
    assert read_bindings(storage) == BINDINGS


def test_rows_are_given_to_the_file_that_holds_their_message() -> None:
    blocks = [block(1, [1, 1, 2, 1]), block(5, [2, 3]), block(7, [1])]
    split = split_blocks(blocks, 1, frozenset({1, 2}))
    assert {
        file_id: [(item.first, item.count) for item in items] for file_id, items in split.items()
    } == {1: [(2, 1), (4, 1), (7, 1)], 2: [(3, 1), (5, 1)]}
    assert list(split[2][0].sequences) == [103]
    assert list(split[2][0].delivered_at) == [2]
