"""Every fate of a write and of a page happens, and no other; synced bytes stay."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tidegate.testing._unsynced import PAGE_BYTES, SECTOR_BYTES, Image, Inode, Write, survivors

OLD = b"." * (2 * PAGE_BYTES)


def store(offset: int, data: bytes) -> Write:
    return Write(offset, data, offset + len(data), mapped=True)


def outcomes(act: Callable[[Inode], None], seeds: int = 400) -> list[bytes]:
    """Two pages of dots, durable, after *act* and a power cut, for every seed."""
    found: list[bytes] = []
    for seed in range(seeds):
        inode = Inode()
        inode.write(Write(0, OLD, len(OLD)))
        inode.sync(1)
        act(inode)
        inode.cut_power(random.Random(seed))
        assert inode.seen.read(1 << 20, 0) == inode.durable.read(1 << 20, 0)
        found.append(inode.durable.read(1 << 20, 0))
    return found


def writes(*items: Write) -> Callable[[Inode], None]:
    def act(inode: Inode) -> None:
        for item in items:
            inode.write(item)

    return act


def test_each_page_of_a_store_has_a_fate_of_its_own() -> None:
    found = outcomes(writes(store(0, b"x" * 2 * PAGE_BYTES)))
    first, second = OLD[:PAGE_BYTES], b"x" * PAGE_BYTES
    halves = {(content[:PAGE_BYTES], content[PAGE_BYTES:]) for content in found}
    assert {(first, first), (first, second), (second, first), (second, second)} <= halves


def test_a_page_is_lost_kept_torn_garbled_flipped_or_as_it_was_before() -> None:
    found = outcomes(writes(store(0, b"x" * PAGE_BYTES)))
    pages = [content[:PAGE_BYTES] for content in found]
    assert {OLD[:PAGE_BYTES], b"x" * PAGE_BYTES} <= set(pages)
    mixed = [page for page in pages if set(page) == set(b"x.")]
    in_sectors = [page for page in mixed if whole_sectors(page)]
    assert any(not is_prefix(page) for page in in_sectors), "any sectors"
    assert any(is_prefix(page) and not whole_sectors(page) for page in mixed), "amid a copy"
    strange = [bytes(set(page) - set(b"x.")) for page in pages]
    assert any(len(others) == 1 for others in strange), "a bit"
    assert any(len(others) > 50 for others in strange), "a sector of anything"
    assert all(content[PAGE_BYTES:] == OLD[PAGE_BYTES:] for content in found), "another page"


def whole_sectors(page: bytes) -> bool:
    sectors = [page[at : at + SECTOR_BYTES] for at in range(0, len(page), SECTOR_BYTES)]
    return all(len(set(sector)) == 1 for sector in sectors)


def is_prefix(page: bytes) -> bool:
    """New bytes first, old ones behind them."""
    return b"." not in page.rstrip(b".")


def test_an_earlier_page_is_one_that_there_was() -> None:
    """Stores to one page are never there without those before them, but for torn sectors."""
    stores = [store(at, b"%d" % at) for at in range(8)]  # all in the first sector
    found = {content[:8] for content in outcomes(writes(*stores))}
    whole = {b"01234567"[:count].ljust(8, b".") for count in range(9)}
    assert whole <= found
    odd = [content for content in found - whole if set(content) <= set(b"01234567.")]
    flipped = [content for content in odd if differs_in_a_bit(content, b"01234567")]
    assert odd == flipped


def differs_in_a_bit(one: bytes, other: bytes) -> bool:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True)) == 1


def test_a_later_page_may_be_there_without_an_earlier_one() -> None:
    found = outcomes(writes(store(0, b"1"), store(PAGE_BYTES, b"2")))
    kept = {(content[:1], content[PAGE_BYTES : PAGE_BYTES + 1]) for content in found}
    assert {(b"1", b"2"), (b"1", b"."), (b".", b"2"), (b".", b".")} <= kept


def test_bytes_that_were_synced_stay_whatever_becomes_of_their_page() -> None:
    def act(inode: Inode) -> None:
        inode.write(store(100, b"synced"))
        inode.sync(1)
        inode.write(store(106, b"y" * 2000))

    for content in outcomes(act):
        assert content[:106] == b"." * 100 + b"synced"
        assert content[2106:] == OLD[2106:]


def test_a_sync_without_stores_leaves_what_was_stored_to_chance() -> None:
    def act(inode: Inode) -> None:
        inode.write(Write(0, b"write", 5))
        inode.write(store(PAGE_BYTES, b"store"))
        inode.sync(2, stores=False)

    found = outcomes(act)
    assert {content[:5] for content in found} == {b"write"}
    assert {b"store", b"....."} <= {content[PAGE_BYTES : PAGE_BYTES + 5] for content in found}


def test_what_is_written_over_a_store_and_synced_is_there() -> None:
    def act(inode: Inode) -> None:
        inode.write(store(0, b"old"))
        inode.sync(1, stores=False)
        inode.write(Write(0, b"new", 3))
        inode.sync(1)

    assert {content[:3] for content in outcomes(act)} == {b"new"}


def test_of_a_failed_sync_nothing_is_durable_and_everything_possible() -> None:
    def act(inode: Inode) -> None:
        inode.write(Write(0, b"new", 3))
        inode.fail_sync()
        inode.sync(0)

    assert {b"new", b"..."} <= {content[:3] for content in outcomes(act)}


def test_of_a_lost_write_only_what_was_written_again_is_durable() -> None:
    def act(inode: Inode) -> None:
        inode.write(Write(0, b"abcdef", 6))
        inode.fail_sync()
        inode.write(Write(2, b"cd", 4))
        inode.sync(1)

    found = [content[:6] for content in outcomes(act)]
    assert {b"abcdef", b"..cd..", b"abcd..", b"..cdef"} <= set(found)
    assert all(content[2:4] == b"cd" for content in found)


def test_a_lost_write_that_is_dropped_from_memory_is_read_as_it_is_on_the_disk() -> None:
    found: set[bytes] = set()
    for seed in range(50):
        inode = Inode()
        inode.write(Write(0, b"....", 4))
        inode.sync(1)
        inode.write(Write(0, b"new", 3))
        inode.fail_sync()
        inode.write(Write(3, b"!", 4))
        inode.drop_clean(random.Random(seed))
        assert inode.seen.read(3, 0) == inode.durable.read(3, 0)
        found.add(inode.seen.read(9, 0))
    assert {b"...!", b"new!"} <= found


def test_a_length_is_kept_or_not() -> None:
    found = {len(content) for content in outcomes(writes(Write(0, None, 9000)))}
    assert found == {len(OLD), 9000}


def test_a_write_falls_into_pieces_at_borders() -> None:
    pieces = Write(500, bytes(600), 1100).pieces(SECTOR_BYTES)
    assert [(piece.offset, len(piece.data or b"")) for piece in pieces] == [
        (500, 12),
        (512, 512),
        (1024, 76),
    ]
    assert Write(0, None, 5).pieces(SECTOR_BYTES) == []


def test_nothing_unsynced_leaves_nothing() -> None:
    nothing: Sequence[Write] = ()
    assert list(survivors(nothing, random.Random(1))) == []


def test_copies_do_not_change_with_the_original() -> None:
    inode = Inode(7)
    inode.write(Write(0, b"a", 1))
    copy = inode.copy()
    inode.write(Write(0, b"b", 1))
    assert (copy.number, copy.seen.read(9, 0), len(copy.unsynced)) == (7, b"a", 1)
    image = Image()
    image.apply(Write(2, b"z", 3))
    other = image.copy()
    image.apply(Write(0, b"y", 1))
    assert (other.read(9, 0), image.read(9, 0)) == (b"\0\0z", b"y\0z")
