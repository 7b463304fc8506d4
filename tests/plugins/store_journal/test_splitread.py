"""Reading from directories: few calls, and damage named by file and offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from journal_kit import ANY_SIZE, run, write
from split_kit import add, folder_of, split_store, vrfile

from tidegate.spi import CorruptRecordError
from tidegate_store_journal.split.records import BLOCK_BYTES, Place
from tidegate_store_journal.split.splitread import Piece


def test_neighbours_are_one_piece_and_strangers_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1))
        folder = folder_of(store)
        handle = folder.borrow()
        own = folder.number
        piece = Piece(folder, handle, folder.header.seed, Place(own, 10, 500, 1, False))
        piece.add(0, 1, Place(own, 10, 500, 1, False))
        assert piece.end == 15
        assert piece.takes(Place(own, 15, 500, 1, False))
        assert piece.takes(Place(own, 500, 500, 1, False))
        assert not piece.takes(Place(own, 14, 500, 1, False))
        assert not piece.takes(Place(own, 600, 500, 1, False))
        assert not piece.takes(Place(own, 15, 500, 1, True))
        assert not piece.takes(Place(own + 1, 15, 500, 1, False))
        piece.end = 1 << 16
        assert not piece.takes(Place(own, 1 << 16, 500, 1, False))
        handle.give_back()
        await store.close()

    run(scenario())


def test_a_flipped_bit_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path)
        await write(store, add(1), add(2), add(3))
        await store.close()
        path = vrfile(tmp_path)
        data = bytearray(path.read_bytes())
        at = 4096 + 2 * BLOCK_BYTES + 60  # in the payload of the second record
        data[at] ^= 1
        path.write_bytes(bytes(data))
        store = await split_store(tmp_path)
        assert len(await store.page_in(1, 0, 1, ANY_SIZE)) == 1
        with pytest.raises(CorruptRecordError, match="CRC of message 2") as caught:
            await store.page_in(1, 1, 1, ANY_SIZE)
        assert f"{path} at offset {4096 + 2 * BLOCK_BYTES}" in str(caught.value)
        assert len(await store.page_in(1, 2, 1, ANY_SIZE)) == 1
        await store.close()

    run(scenario())


def test_a_file_of_one_message_that_is_gone_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await split_store(tmp_path, max_record_size=1024)
        await write(store, add(1, size=2000))
        (vrfile(tmp_path).parent / "1.msg").unlink()
        with pytest.raises(
            CorruptRecordError, match=r"1\.msg: the file that held message 1 is miss"
        ):
            await store.page_in(1, 0, 1, ANY_SIZE)
        await store.close()

    run(scenario())
