"""The part of a list that is only in the store is counted right while everything moves."""

from collections.abc import Sequence

from tidegate.spi import Message, StoredMessage
from tidegate_cursors._stored_tail import StoredTail


def stored(sequence: int) -> StoredMessage:
    return StoredMessage.of(sequence, Message("queue://q", b"body"))


class Pages:
    """Answers each read with the next of *pages* after running what *meanwhile* says."""

    def __init__(self, *pages: Sequence[int]) -> None:
        self.pages = list(pages)
        self.asked: list[tuple[int, int, int]] = []
        self.meanwhile = lambda: None

    async def read(self, after: int, limit: int, bytes_max: int) -> Sequence[StoredMessage]:
        self.asked.append((after, limit, bytes_max))
        self.meanwhile()
        return [stored(sequence) for sequence in self.pages.pop(0)]


async def read(tail: StoredTail) -> list[int]:
    return [message.sequence for message in await tail.read(10, 1 << 30)]


async def test_pages_follow_each_other() -> None:
    pages = Pages([3, 5], [8])
    tail = StoredTail(pages.read, recovered_count=3)
    assert (await read(tail), tail.count, tail.position) == ([3, 5], 1, 5)
    assert (await read(tail), tail.count, tail.position) == ([8], 0, 8)
    assert [after for after, _, _ in pages.asked] == [0, 5]
    assert await read(tail) == []
    assert len(pages.asked) == 2, "nothing is left, so nothing is read"


async def test_durable_messages_that_were_not_offered_yet_stay_behind() -> None:
    tail = StoredTail(Pages([1, 2, 3, 4]).read, recovered_count=2)
    assert (await read(tail), tail.count, tail.position) == ([1, 2], 0, 2)


async def test_messages_removed_while_the_page_is_read_do_not_come_back() -> None:
    pages = Pages([1, 2, 3, 4])
    tail = StoredTail(pages.read, recovered_count=4)
    removed: list[int] = []
    pages.meanwhile = lambda: removed.append(tail.remove({2, 3}))
    assert (await read(tail), tail.count, removed) == ([1, 4], 0, [2])


async def test_what_went_past_the_page_into_memory_is_not_taken_from_it() -> None:
    """All known messages are purged during the read; 5 goes to memory directly, 6 no longer fits."""
    pages = Pages([1, 2, 5, 6])
    tail = StoredTail(pages.read, recovered_count=2)

    def meanwhile() -> None:
        assert tail.remove({1, 2}) == 2
        tail.position = 5
        tail.add(1)

    pages.meanwhile = meanwhile
    assert (await read(tail), tail.count, tail.position) == ([6], 0, 6)


async def test_a_count_that_is_too_high_is_corrected_by_an_empty_page() -> None:
    tail = StoredTail(Pages([]).read, recovered_count=3)
    assert (await read(tail), tail.count) == ([], 0)


async def test_an_empty_page_keeps_what_was_offered_during_the_read() -> None:
    pages = Pages([], [9])
    tail = StoredTail(pages.read, recovered_count=3)
    pages.meanwhile = lambda: tail.add(1) if len(pages.asked) == 1 else None
    assert (await read(tail), tail.count) == ([], 1)
    assert (await read(tail), tail.count) == ([9], 0)


async def test_removal_counts_only_what_lies_behind_the_position() -> None:
    tail = StoredTail(Pages([1, 2]).read, recovered_count=5)
    await read(tail)
    assert tail.remove({1, 2, 3}) == 1
    assert tail.count == 2
    assert tail.remove({3, 4, 5, 6, 7}) == 2, "more than are known cannot leave"
    assert tail.remove({8}) == 0


async def test_a_list_without_a_store_has_no_tail() -> None:
    tail = StoredTail(None, recovered_count=0)
    assert not tail.is_stored
    assert await read(tail) == []
