"""Where a list is fed from: kept by its cursor, summed up for all."""

from tidegate.spi import CursorFeed, FeedReason, FeedTotals


def test_each_turn_has_a_time_and_a_reason_and_counts_for_all() -> None:
    now, totals = [5], FeedTotals()
    feed, other = CursorFeed(lambda: now[0], totals), CursorFeed(lambda: now[0], totals)
    assert (feed.is_paging, feed.since, feed.reason) == (False, 5, FeedReason.START)
    now[0] = 7
    feed.turn(FeedReason.LIMIT)
    assert (feed.is_paging, feed.since, feed.reason) == (True, 7, FeedReason.LIMIT)
    other.start_paging()
    assert (other.since, other.turns, totals.paging, totals.turns) == (5, 0, 2, 1)
    feed.paged(3, 30)
    other.paged(1, 1)
    feed.turn(FeedReason.DRAINED)
    assert (totals.paging, totals.turns) == (1, 2)
    assert (feed.paged_count, feed.paged_bytes) == (3, 30)
    assert (totals.paged_count, totals.paged_bytes) == (4, 31)


def test_a_list_that_ends_is_not_fed_from_pages_any_more() -> None:
    totals = FeedTotals()
    feed = CursorFeed(totals=totals)
    feed.start_paging()
    feed.end()
    feed.end()
    assert (totals.paging, feed.is_paging) == (0, False)
