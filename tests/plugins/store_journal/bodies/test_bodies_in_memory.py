"""Bodies that were just written and are read from memory: which, how many, and until when."""

from tidegate_store_journal.bodies.kept import RecentBodies


def kept(recent: RecentBodies, body_id: str, size: int) -> bool:
    has_place = recent.reserve(body_id, size)
    recent.keep(body_id, (bytes(size),))
    return has_place


def test_a_body_is_there_when_it_is_complete() -> None:
    recent = RecentBodies(10, 5)
    assert recent.reserve("a", 3)
    assert (recent.get("a"), recent.bytes) == (None, 3)
    recent.keep("a", (b"x", b"yz"))
    assert recent.get("a") == (b"x", b"yz")


def test_a_body_over_the_limit_has_no_place() -> None:
    recent = RecentBodies(10, 5)
    assert kept(recent, "a", 5)
    assert not kept(recent, "b", 6)
    assert (recent.get("b"), recent.bytes) == (None, 5)
    assert recent.get("a") is not None, "it made room for nothing"


def test_the_oldest_makes_room() -> None:
    recent = RecentBodies(10, 5)
    assert all(kept(recent, name, 4) for name in "abc")
    assert [name for name in "abc" if recent.get(name)] == ["b", "c"]
    assert recent.bytes == 8


def test_places_of_bodies_on_their_way_are_not_taken() -> None:
    recent = RecentBodies(10, 5)
    assert recent.reserve("a", 5)
    assert recent.reserve("b", 5)
    assert not kept(recent, "c", 1)
    recent.drop("a")
    assert kept(recent, "c", 1)
    recent.keep("a", (b"late",))
    assert recent.get("a") is None, "its place was given up"


def test_a_body_is_dropped_once() -> None:
    recent = RecentBodies(10, 5)
    kept(recent, "a", 4)
    recent.drop("a")
    recent.drop("a")
    recent.drop("nobody")
    assert (recent.get("a"), recent.bytes) == (None, 0)


def test_nothing_stays_when_nothing_more_is_written() -> None:
    recent = RecentBodies(10, 5)
    kept(recent, "a", 4)
    recent.drop_if_idle()
    assert recent.get("a") is not None
    assert recent.reserve("b", 2)
    recent.drop_if_idle()
    assert recent.get("a") is not None, "something was written in between"
    recent.drop_if_idle()
    assert recent.get("a") is None
    assert recent.bytes == 2, "a body on its way keeps its place"
