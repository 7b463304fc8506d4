"""The contents that the portable tests carry: of everything something, and told in full."""

from pathlib import Path

import msgspec

from tidegate.spi import (
    AddMessage,
    Discard,
    DiscardReason,
    Message,
    StoreContext,
    Subscription,
    WriteBatch,
)
from tidegate.testing._portable_contents import (
    ENDED,
    FULL,
    MEMBER,
    SESSION,
    contents,
    everything,
    small,
)
from tidegate.testing.memory_store import MemoryStore


def test_every_field_of_the_full_values_differs_from_its_default() -> None:
    plain = msgspec.structs.asdict(Message("", b""))
    full = msgspec.structs.asdict(FULL)
    same = {name for name in plain if plain[name] == full[name]}
    assert same <= {"large"}  # a body in a file of its own needs a store that has such files
    assert SESSION.will is FULL
    plain = msgspec.structs.asdict(Subscription(0, "", "", "", durable=False))
    given = [msgspec.structs.asdict(item) for item in (MEMBER, ENDED)]
    assert not [name for name in plain if all(plain[name] == item[name] for item in given)]
    assert MEMBER.session == SESSION.key


async def test_a_difference_shows() -> None:
    async def told(extra: list) -> dict[str, object]:
        store = MemoryStore(StoreContext(Path(), "test", keep_acknowledged=True))
        await store.open()
        await store.write(WriteBatch([*everything(), *extra]))
        await store.close()
        return await contents(store, await store.open())

    plain = await told([])
    assert all(plain.values())
    assert await told([]) == plain
    more = [AddMessage(2**60, small(1), (1,)), Discard(1, (2**60,), DiscardReason.PURGED)]
    assert await told(more) != plain
