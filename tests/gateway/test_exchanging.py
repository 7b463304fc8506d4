"""What becomes of extensions with a reload, before anything of it counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tidegate import exchanging
from tidegate.config import ResolvedExtension


class Fixed:
    """An extension that only a start changes."""


class Moving:
    """An Exchangeable resident."""

    def __init__(self, identity: str, text: str = "") -> None:
        self.identity, self.text = identity, text
        self.told: list[str] = []

    def __repr__(self) -> str:
        return self.identity

    def differences(self, other: object) -> Sequence[str]:
        assert isinstance(other, Moving)
        return () if other.text == self.text else (other.text,)

    async def become(self, other: object) -> None:
        assert isinstance(other, Moving)
        self.told.append(f"becomes {other.text}")
        if other.text == "bad":
            raise ValueError("no")

    async def move_in(self, broker: object) -> None:
        self.told.append("in")

    async def move_out(self) -> None:
        self.told.append("out")


def extension(instance: object, options: object = None) -> ResolvedExtension:
    return ResolvedExtension("x", cast("Any", None), options, cast("Any", instance))


async def test_each_is_added_changed_or_removed_and_those_that_cannot_stay_as_they_are() -> None:
    fixed, same, other, gone = Fixed(), Moving("same"), Moving("other"), Moving("gone")
    new = Moving("new")
    old = [extension(fixed, 1), *map(extension, (same, other, gone))]
    wanted = [
        extension(new),
        extension(Moving("other", "else")),
        extension(Fixed(), 1),
        extension(Moving("same")),
    ]
    plan = exchanging.plan(old, wanted)
    assert [item.instance for item in plan.extensions] == [new, other, fixed, same]
    assert [(one.key, one.what) for one in plan.changes] == [
        ("extensions[0]", "added: new"),
        ("extensions[1]", "changed: other: else"),
        ("extensions", "removed: gone"),
    ]
    assert plan.left == ()
    residents: list[Any] = [same, other, gone]
    assert await exchanging.carry_out(plan, residents, cast("Any", None)) == []
    assert residents == [same, other, new]
    assert (same.told, other.told, gone.told, new.told) == ([], ["becomes else"], ["out"], ["in"])


async def test_what_cannot_change_is_named_and_so_is_what_fails() -> None:
    fixed, moving = Fixed(), Moving("a")
    plan = exchanging.plan(
        [extension(fixed, 1), extension(moving)], [extension(Moving("a", "bad"))]
    )
    assert [item.instance for item in plan.extensions] == [moving, fixed]
    assert [one.key for one in plan.left] == ["extensions[1]"]
    residents: list[Any] = [moving]
    (failed,) = await exchanging.carry_out(plan, residents, cast("Any", None))
    assert failed.what == "a could not be changed: no"
    plan = exchanging.plan([extension(fixed, 1)], [extension(Fixed(), 2)])
    assert [one.key for one in plan.left] == ["extensions[0]"]
