"""Memory follows what is counted: each attack with its limit out of the way.

These are the negative controls (what the limits keep out does come when they are raised), and they
show that nothing is left out of the count: the process grows by at most 1.5 times what the gateway
says that it holds. Limits that cannot be raised are patched (``Victim(patch=…)``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import attacks
import mqtt_raw as raw
import pytest
from attack import ANSWER_S, MB, Attacker, Victim, connected, frame, frame_of

pytestmark = pytest.mark.long

#: What a gateway grows by in a busy minute, whatever is held: reads, pages, the store's own.
NOISE = 28 * MB

UNLIMITED = """
system_topics_interval = "1s"
pending_write_limit = "4mb"
held_limit = "0b"
connection_held_limit = "0b"
login_input_limit = "0b"
in_flight_limit = "0b"
cursor_memory_limit = "4gb"
unstored_memory_limit = "4gb"
retained_limit = "4gb"
id_cache_limit = "4gb"
levels_max = 65535
"""
QUOTAS = """
[[destinations]]
match = "vm.>"
cursor = "vm"
memory_limit = "4gb"

[[quotas]]
principal = "*"
sessions_max = 0
"""
FACTOR = 1.5

Attack = Callable[[Victim, ExitStack], object]


def receipts(victim: Victim, stack: ExitStack) -> None:
    attacks.receipts(stack.enter_context(connected(victim)))


def transactions(victim: Victim, stack: ExitStack) -> None:
    attacker = stack.enter_context(connected(victim))
    attacker.flood(attacks.open_transactions(), patience_s=20)


def unauthenticated(victim: Victim, stack: ExitStack) -> None:
    stack.callback(attacks.close_all, attacks.half_connects(victim))


def half(victim: Victim, stack: ExitStack) -> None:
    for _ in range(2):
        attacks.half_a_message(stack.enter_context(connected(victim)))


def retained(victim: Victim, stack: ExitStack) -> None:
    assert b"ERROR" not in attacks.retained(victim, 1000)


def vm(victim: Victim, stack: ExitStack) -> None:
    one = frame_of("SEND", {"destination": "/queue/vm.headers", **attacks.HEADERS}, b"x")
    stack.enter_context(connected(victim)).flood([one] * 1000, patience_s=20)


def wills(victim: Victim, stack: ExitStack) -> None:
    packets = (raw.connect(f"will{n}", will=("will", bytes(60_000))) for n in range(900))
    attackers, told = attacks.mqtt_connects(victim, packets)
    stack.callback(attacks.close_all, attackers)
    assert set(told) == {0}


def duplicates(victim: Victim, stack: ExitStack) -> None:
    attacker = stack.enter_context(connected(victim))
    attacker.flood(duplicate_ids(900), patience_s=20)


def duplicate_ids(count: int) -> Iterator[bytes]:
    for number in range(count):
        # One header line has 16 KB at most; MQTT has 64.
        value = f"{number:09}" + "d" * 15_900
        headers = {"destination": "/topic/once", "_AMQ_DUPL_ID": value}
        yield frame_of("SEND", headers, b"x")


def packet_ids(victim: Victim, stack: ExitStack) -> None:
    """Four sessions with 40,000 QoS 2 messages each that are never released."""
    for number in range(4):
        attacker = stack.enter_context(Attacker(victim.mqtt_port))
        attacker.flood([raw.connect(f"never{number}", clean=False)])
        attacker.until(b"\x20\x02\0\0")
        for first in range(1, 40_000, 500):
            packets = (
                raw.publish("t", b"", qos=2, packet_id=packet_id)
                for packet_id in range(first, first + 500)
            )
            attacker.flood([b"".join(packets)], patience_s=20)
            attacker.until(b"\x50\x02" + raw.two(first + 499))


def durable(victim: Victim, stack: ExitStack) -> None:
    assert b"ERROR" not in attacks.durable_subscriptions(victim, 9000)


def queues(victim: Victim, stack: ExitStack) -> None:
    with connected(victim) as attacker:
        attacker.flood(
            (frame("SEND", destination=f"/queue/made{number}") for number in range(9000)),
            patience_s=20,
        )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        assert b"ERROR" not in attacker.rest()


def sessions(victim: Victim, stack: ExitStack) -> None:
    for number in range(10):  # few connections at a time: it is what they leave behind that counts
        name = f"{number}" + "s" * 1000
        assert set(attacks.sessions(victim, 200, name)) == {0}


def filters(victim: Victim, stack: ExitStack) -> None:
    attacker = stack.enter_context(Attacker(victim.mqtt_port))
    attacker.flood([attacks.MQTT_CONNECT])
    attacker.until(b"\x20\x02\0\0")
    for number in range(10):
        wanted = f"{number}/" + "a/" * 30_000 + "#"
        attacker.flood([raw.subscribe(number + 1, (wanted, 0))], patience_s=20)
        attacker.until(b"\x90\x03" + raw.two(number + 1))


def in_flight(victim: Victim, stack: ExitStack) -> None:
    attacker = stack.enter_context(connected(victim))
    attacks.fill_queues(victim)
    attacks.take(attacker, 60 * MB)


def unserved(victim: Victim, stack: ExitStack) -> None:
    """Twenty subscriptions to topics whose client does not read."""
    attacker = stack.enter_context(connected(victim))
    attacker.flood(
        frame("SUBSCRIBE", id=number, destination=f"/topic/vm.unserved{number}")
        for number in range(20)
    )
    attacker.flood([frame("SEND", destination="/topic/x", receipt="there")])
    attacker.until(b"receipt-id:there")
    producer = stack.enter_context(connected(victim))
    producer.flood(
        (
            frame("SEND", b"u" * 60_000, destination=f"/topic/vm.unserved{number}")
            for _ in range(60)
            for number in range(20)
        ),
        patience_s=20,
    )


@pytest.mark.parametrize(
    ("attack", "least", "options"),
    [
        (receipts, 60 * MB, {"stomp": 'unread_output_max = "1gb"'}),
        (transactions, 60 * MB, {}),
        (unauthenticated, 60 * MB, {}),
        (half, 60 * MB, {}),
        (retained, 50 * MB, {}),
        (vm, 50 * MB, {}),
        (wills, 50 * MB, {}),
        (
            duplicates,
            12 * MB,
            {"patch": "tidegate.broker.transactions.duplicates.ID_CHARACTERS_MAX = 1 << 30"},
        ),
        (packet_ids, 40 * MB, {}),
        (durable, 25 * MB, {}),
        (queues, 25 * MB, {}),
        (sessions, 4 * MB, {}),
        (filters, 90 * MB, {}),
        (in_flight, 55 * MB, {}),
        (unserved, 60 * MB, {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_process_grows_by_what_is_counted(
    make_victim: Callable[..., Victim], attack: Attack, least: int, options: dict[str, str]
) -> None:
    victim = make_victim(broker=UNLIMITED, extra=QUOTAS, **options)
    with ExitStack() as stack:
        attack(victim, stack)
        deadline = time.monotonic() + ANSWER_S
        while True:  # metrics are published once a second
            counted = attacks.counted(victim)
            grown = victim.rss_bytes - victim.base_bytes
            if counted >= least and grown < counted * FACTOR + NOISE:
                break
            assert time.monotonic() < deadline, (grown >> 20, counted >> 20)
            time.sleep(0.3)  # free memory goes back in a quiet second
    assert grown > least // 3


def temporary_files(victim: Victim) -> int:
    """Eight subscriptions that do not read get 8 MB each. Returns: disk that the files take."""
    with connected(victim) as attacker, connected(victim) as producer:
        attacker.flood(
            frame("SUBSCRIBE", id=number, destination=f"/topic/spooled{number}")
            for number in range(8)
        )
        attacker.flood([frame("SEND", destination="/topic/x", receipt="there")])
        attacker.until(b"receipt-id:there")
        producer.flood(
            (
                frame("SEND", b"s" * 60_000, destination=f"/topic/spooled{number}")
                for _ in range(140)
                for number in range(8)
            ),
            patience_s=20,
        )
        producer.flood([frame("SEND", destination="/topic/x", receipt="there")])
        producer.until(b"receipt-id:there")
        return spooled(victim)


def spooled(victim: Victim) -> int:
    """Blocks of the process's open files that have no name."""
    size = 0
    for descriptor in Path(f"/proc/{victim.pid}/fd").iterdir():
        try:
            if "(deleted)" in str(descriptor.readlink()):
                size += descriptor.stat().st_blocks * 512
        except OSError:  # closed meanwhile
            continue
    return size


def test_temporary_files_have_a_limit_together(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='unstored_memory_limit = "1mb"\ntemporary_space = "8mb"')
    assert MB < temporary_files(victim) < 9 * MB
    assert victim.growth_bytes < 56 * MB


def test_control_temporary_files(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='unstored_memory_limit = "1mb"')
    assert temporary_files(victim) > 30 * MB


def test_control_names_that_are_used_once(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(
        patch="tidegate_protocols.mqtt.messages.names.CACHED_NAME_LENGTH_MAX = 1 << 30"
    )
    attacks.names_without_end(victim)
    assert victim.growth_bytes > 56 * MB
