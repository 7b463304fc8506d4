"""Messages in memory stay in sequence order and their memory is known exactly."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tidegate.spi import MESSAGE_OVERHEAD_BYTES, Message, StoredMessage
from tidegate_cursors._ordered_memory import OrderedMemory

ANY = 1 << 40


def stored(sequence: int, size: int = 10) -> StoredMessage:
    return StoredMessage.of(sequence, Message("queue://q", bytes(size)))


def sequences(memory: OrderedMemory) -> list[int]:
    return [message.sequence for message in memory.in_order()]


def is_accounted(memory: OrderedMemory) -> bool:
    bodies = sum(len(message.message.body) for message in memory.messages)
    return memory.memory_bytes == bodies + len(memory) * MESSAGE_OVERHEAD_BYTES


def test_a_batch_that_fits_is_appended_whole() -> None:
    memory = OrderedMemory()
    cost = 2 * (10 + MESSAGE_OVERHEAD_BYTES)
    assert memory.append_within([stored(1), stored(2)], cost, ANY) == 2
    assert memory.append_within([stored(3)], cost, ANY) == 0
    assert sequences(memory) == [1, 2]
    assert memory.memory_bytes == cost


def test_a_batch_is_cut_where_the_limit_is() -> None:
    memory = OrderedMemory()
    batch = [stored(sequence, size) for sequence, size in enumerate([10, 500, 10], 1)]
    assert memory.append_within(batch, 2 * MESSAGE_OVERHEAD_BYTES + 20, ANY) == 1
    assert sequences(memory) == [1]
    assert is_accounted(memory)


def test_a_batch_is_cut_where_the_number_is() -> None:
    memory = OrderedMemory()
    assert memory.append_within([stored(sequence) for sequence in range(1, 6)], ANY, 3) == 3
    assert memory.append_within([stored(6)], ANY, 3) == 0
    assert sequences(memory) == [1, 2, 3]
    assert is_accounted(memory)


def test_the_first_message_is_kept_whatever_its_size() -> None:
    memory = OrderedMemory()
    assert memory.append_within([stored(1, 10_000), stored(2)], 100, ANY) == 1
    assert sequences(memory) == [1]


def test_taking_everything_leaves_nothing_accounted() -> None:
    memory = OrderedMemory()
    memory.append([stored(1), stored(2)])
    assert [message.sequence for message in memory.take(2, 20)] == [1, 2]
    assert (len(memory), memory.memory_bytes, list(memory.take(1, 1))) == (0, 0, [])


def test_clear_forgets_messages_and_memory() -> None:
    memory = OrderedMemory()
    memory.append([stored(1)])
    memory.clear()
    assert (len(memory), memory.memory_bytes) == (0, 0)


def test_removal_finds_messages_at_the_front_and_inside() -> None:
    memory = OrderedMemory()
    memory.append([stored(sequence, sequence) for sequence in range(1, 9)])
    assert memory.remove({1, 2, 5, 8, 99}) == 4
    assert sequences(memory) == [3, 4, 6, 7]
    assert is_accounted(memory)
    assert memory.remove({3}) == 1
    assert memory.remove({50}) == 0
    assert sequences(memory) == [4, 6, 7]
    assert is_accounted(memory)


@given(st.data())
def test_what_is_taken_and_put_back_in_any_order_is_in_order_again(data: st.DataObject) -> None:
    memory = OrderedMemory()
    memory.append([stored(sequence, sequence % 7) for sequence in range(1, 31)])
    out: list[StoredMessage] = []
    for _ in range(data.draw(st.integers(1, 8))):
        taken = memory.take(data.draw(st.integers(0, 12)), data.draw(st.integers(1, 60)))
        out += taken
        back = data.draw(st.lists(st.sampled_from(out), unique=True)) if out else []
        out = [message for message in out if message not in back]
        cut = data.draw(st.integers(0, len(back)))
        memory.put_back(back[:cut])
        memory.put_back(back[cut:])
        if not data.draw(st.booleans(), "look at it"):
            continue
        assert sequences(memory) == sorted(sequences(memory))
        assert sorted([*sequences(memory), *(m.sequence for m in out)]) == list(range(1, 31))
        assert is_accounted(memory)


def test_what_many_consumers_bring_back_is_put_in_order_once() -> None:
    """One after the other, three hundred that were lost at a time held the gateway up for 17 s."""

    class Watched(deque[StoredMessage]):
        looks = 0

        def popleft(self) -> StoredMessage:
            self.looks += 1
            return super().popleft()

    memory = OrderedMemory()
    taken = [stored(sequence) for sequence in range(1, 1001)]
    consumers = [taken[first::10] for first in range(10)]
    memory.messages = watched = Watched()
    for messages in consumers:
        memory.put_back(messages)
    assert watched.looks == 0
    assert sequences(memory) == list(range(1, 1001))
    assert watched.looks <= 1000


@given(st.sets(st.integers(1, 2000), min_size=1, max_size=8), st.integers(0, 3))
def test_few_that_belong_far_behind_get_there(gone: set[int], first: int) -> None:
    memory = OrderedMemory()
    memory.append([stored(sequence) for sequence in range(1, 2001) if sequence not in gone])
    others = memory.take(first, ANY)
    memory.put_back([stored(sequence) for sequence in gone])
    memory.put_back(others)
    assert sequences(memory) == list(range(1, 2001))
    assert is_accounted(memory)


def test_only_the_end_that_was_never_out_is_dropped() -> None:
    memory = OrderedMemory()
    memory.append([stored(sequence, 100) for sequence in range(1, 9)])
    assert memory.drop_behind(6, 0) == 2
    assert sequences(memory) == [1, 2, 3, 4, 5, 6]
    assert memory.drop_behind(0, 3 * (100 + MESSAGE_OVERHEAD_BYTES)) == 3
    assert sequences(memory) == [1, 2, 3]
    assert memory.drop_behind(0, 0) == 2, "one stays"
    assert is_accounted(memory)


def test_what_was_delivered_before_is_not_dropped() -> None:
    memory = OrderedMemory()
    delivered = StoredMessage.of(2, stored(2, 100).message, 1)
    memory.append([stored(1, 100), delivered, stored(3, 100)])
    assert memory.drop_behind(0, 0) == 1
    assert sequences(memory) == [1, 2]
