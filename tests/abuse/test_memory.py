"""What clients make the gateway hold, and where that ends. With the limit raised it grows: the controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mqtt_raw as raw
import pytest
from attack import CONNECT, MB, Attacker, Victim, connected, frame, frame_of

from tidegate.spi import Held

#: Every attack tries to make it grow by so much; more than an hour's worth of noise, little work.
ATTACK_BYTES = 96 * MB
#: So much it may: what the limit lets in, and what it takes to deal with 8 MB, which is what the loop
#: reads from one socket at a time.
GROWTH_MAX = 56 * MB

#: Four header lines of 15 KB.
NOTES = {f"note{number}": "n" * 15_000 for number in range(4)}

MQTT_CONNECT = raw.connect("attacker")


def receipts(attacker: Attacker) -> int:
    """Ask for receipts of 15 KB each, and never read them."""
    one = frame("SEND", b"x", destination="/topic/nobody", receipt="r" * 15_000)
    return attacker.flood([one] * (ATTACK_BYTES // len(one)))


def test_receipts_that_are_never_read_stop_the_reading(victim: Victim) -> None:
    with connected(victim) as attacker:
        assert receipts(attacker) < ATTACK_BYTES * 3 // 4
        assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_receipts_that_are_never_read(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='connection_held_limit = "1gb"', stomp='unread_output_max = "1gb"')
    with connected(victim) as attacker:
        assert receipts(attacker) > ATTACK_BYTES * 9 // 10
        assert victim.growth_bytes > ATTACK_BYTES // 2


@pytest.mark.long
def test_who_never_reads_is_closed(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='unread_output_max = "64kb"\nunread_output_timeout = "100ms"')
    with connected(victim) as attacker:
        assert receipts(attacker) < ATTACK_BYTES * 3 // 4
        attacker.rest()  # it ends
    assert "unread_output_timeout" in victim.log.read_text()


def transactions(attacker: Attacker) -> bytes:
    """Fill open transactions, with little in the bodies and much in the headers."""
    attacker.flood(_transactions(), patience_s=20)
    attacker.flood([frame("DISCONNECT", receipt="end")])
    return attacker.rest()


def _transactions() -> Iterator[bytes]:
    per_transaction = 300
    send = b"".join(
        frame("SEND", b"x", destination="/topic/held", transaction="%d", note="n" * 15_000)
        for _ in range(per_transaction)
    )
    for number in range(ATTACK_BYTES // (per_transaction * 15_000)):
        yield frame("BEGIN", transaction=number)
        yield send.replace(b"transaction:%d", b"transaction:%d" % number)


def test_open_transactions_are_refused_beyond_what_a_connection_may_hold(victim: Victim) -> None:
    with connected(victim) as attacker:
        heard = transactions(attacker)
    assert heard.startswith(b"ERROR\n")
    assert b"broker.connection_held_limit" in heard
    assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_open_transactions(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim()
    with connected(victim) as attacker:
        assert transactions(attacker).startswith(b"RECEIPT\n")
    assert victim.growth_bytes > ATTACK_BYTES // 2


def bodies_before_login(victim: Victim) -> list[Attacker]:
    """Six CONNECTs that announce 90 MB of body, and send a part."""
    head = frame("CONNECT", accept_version="1.2", host="h", content_length=90 * MB)[:-1]
    attackers = [victim.attacker() for _ in range(6)]
    for attacker in attackers:
        attacker.flood([head, *[bytes(MB)] * 16])
    return attackers


def test_a_connect_has_no_body(victim: Victim) -> None:
    for attacker in bodies_before_login(victim):
        with attacker:
            assert b"CONNECT must not have a body" in attacker.rest()
    assert victim.growth_bytes < GROWTH_MAX


def test_a_connect_has_no_body_of_unknown_length_either(victim: Victim) -> None:
    with victim.attacker() as attacker:
        attacker.flood([CONNECT[:-1], *[b"x" * MB] * 16])
        assert b"CONNECT must not have a body" in attacker.rest()


def unacknowledged(victim: Victim, wanted: int) -> int:
    """Take from eight queues of 8 MB each and acknowledge nothing. Returns: bytes that came."""
    queues = [f"/queue/taken{number}" for number in range(8)]
    with connected(victim) as producer:
        body = b"n" * 60_000
        producer.flood(
            (frame("SEND", body, destination=queue) for queue in queues for _ in range(140)),
            patience_s=20,
        )
        producer.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        producer.until(b"there")
    heard = 0
    with connected(victim) as attacker:
        attacker.flood(
            frame(
                "SUBSCRIBE",
                id=n,
                destination=queue,
                ack="client",
            )
            for n, queue in enumerate(queues)
        )
        while heard < wanted:
            heard += len(attacker.socket.recv(1 << 20))
        attacker.flood([frame("SEND", b"", destination="/topic/x", receipt="now")])
        heard += len(attacker.until(b"receipt-id:now"))
    return heard


def test_what_is_never_acknowledged_ends_the_deliveries(victim: Victim) -> None:
    assert unacknowledged(victim, 7 * MB) < 24 * MB
    assert victim.growth_bytes < GROWTH_MAX


@pytest.mark.long
def test_control_what_is_never_acknowledged(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='cursor_memory_limit = "8mb"')
    assert unacknowledged(victim, 60 * MB) > 60 * MB
    assert victim.growth_bytes > 56 * MB


def queue_subscriptions(victim: Victim) -> bytes:
    """Subscribe to one queue again and again. Returns: what the client is told."""
    with connected(victim) as attacker:
        attacker.flood(
            frame("SUBSCRIBE", id=number, destination="/queue/vm.headers") for number in range(9000)
        )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


@pytest.mark.long
def test_subscriptions_to_queues_count(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(
        broker='connection_held_limit = "8mb"', stomp="subscriptions_max = 1000000"
    )
    assert b"broker.connection_held_limit" in queue_subscriptions(victim)


#: What a CONNECT of MQTT may be long, and the beginning of one.
HALF_CONNECT = raw.packet(0x10, raw.text("MQTT") + b"\x04\xc2\0\0" + bytes(320_000))[:300_000]


def half_connects(victim: Victim) -> list[Attacker]:
    """Three hundred strangers begin a CONNECT of 300 KB each and wait."""
    attackers = [Attacker(victim.mqtt_port) for _ in range(300)]
    for attacker in attackers:
        attacker.flood([HALF_CONNECT])
    return attackers


def close_all(attackers: list[Attacker]) -> None:
    for attacker in attackers:
        attacker.close()


def test_strangers_together_hold_no_more_than_is_allowed(victim: Victim) -> None:
    attackers = half_connects(victim)
    with Attacker(victim.mqtt_port) as client:  # who says who it is gets in, beside them
        client.flood([MQTT_CONNECT])
        client.until(b"\x20\x02\0\0")
    close_all(attackers)
    assert victim.growth_bytes < GROWTH_MAX
    assert "broker.login_input_limit" in victim.log.read_text()


@pytest.mark.long
def test_control_strangers(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker='login_input_limit = "1gb"')
    attackers = half_connects(victim)
    with Attacker(victim.mqtt_port) as client:
        client.flood([MQTT_CONNECT])
        client.until(b"\x20\x02\0\0")
    close_all(attackers)
    assert victim.growth_bytes > 60 * MB


def half_a_message(attacker: Attacker) -> None:
    """Half of a retained SEND, and no more."""
    head = frame("SEND", destination="/topic/half", retain="true", content_length=90 * MB)[:-1]
    attacker.flood([head, *[bytes(MB)] * 45])


def test_half_a_message_is_no_longer_than_what_a_connection_may_hold(victim: Victim) -> None:
    with connected(victim) as attacker:
        half_a_message(attacker)
        assert b"broker.connection_held_limit" in attacker.until(b"\0")
    assert victim.growth_bytes < GROWTH_MAX // 2


@pytest.mark.long
def test_control_half_a_message(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim()
    with connected(victim) as attacker:
        half_a_message(attacker)
        assert victim.growth_bytes > 30 * MB


@pytest.mark.long
def test_half_a_message_has_a_time_limit(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='frame_timeout = "100ms"', mqtt='frame_timeout = "100ms"')
    with connected(victim) as attacker:
        head = frame("SEND", destination="/topic/half", retain="true", content_length=9 * MB)[:-1]
        attacker.flood([head, bytes(MB // 2)])
        assert b"frame_timeout" in attacker.until(b"\0")
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT, raw.publish("half", bytes(9 * MB), retain=True)[: MB // 2]])
        attacker.rest()  # it ends
    assert victim.log.read_text().count("frame_timeout") >= 2


@pytest.mark.long
def test_half_a_streamed_body_has_a_time_limit(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(stomp='body_timeout = "100ms"', mqtt='body_timeout = "100ms"')
    with connected(victim) as attacker:
        head = frame("SEND", destination="/queue/half", content_length=90 * MB)[:-1]
        attacker.flood([head, bytes(MB)])
        assert b"body_timeout" in attacker.until(b"\0")
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT, raw.publish("half", bytes(9 * MB), qos=1, packet_id=1)[:MB]])
        attacker.rest()  # it ends
    assert victim.log.read_text().count("body_timeout") >= 2


def names_without_end(victim: Victim) -> None:
    """Publish to topics with names of 60 KB, each once."""
    count = ATTACK_BYTES // 60_000
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT], patience_s=20)
        name = b"n" * 60_000
        attacker.flood(
            [raw.publish(b"%d" % number + name, b"") for number in range(count)], patience_s=20
        )
        attacker.flood([b"\xc0\x00"])
        attacker.until(b"\xd0\x00")


def test_names_that_are_used_once_are_not_kept(victim: Victim) -> None:
    names_without_end(victim)
    assert victim.growth_bytes < GROWTH_MAX


def filters_of_many_levels(victim: Victim) -> bytes:
    """Twenty filters of 30,000 levels. Returns: the reasons in the SUBACKs."""
    with Attacker(victim.mqtt_port) as attacker:
        attacker.flood([MQTT_CONNECT])
        attacker.until(b"\x20\x02\0\0")
        reasons = b""
        for number in range(20):
            wanted = f"{number}/" + "a/" * 30_000 + "#"
            attacker.flood([raw.subscribe(number + 1, (wanted, 0))], patience_s=20)
            head = b"\x90\x03" + raw.two(number + 1)
            while len(attacker.heard.partition(head)[2]) < 1:
                attacker.heard += attacker.socket.recv(100)
            reasons += attacker.until(head)[-1:]
        return reasons


def test_filters_have_no_more_levels_than_are_allowed(victim: Victim) -> None:
    assert filters_of_many_levels(victim) == b"\x80" * 20
    assert victim.growth_bytes < GROWTH_MAX // 2


@pytest.mark.long
def test_control_filters_of_many_levels(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(broker="levels_max = 65535")
    assert filters_of_many_levels(victim) == b"\0" * 20
    assert victim.growth_bytes > 3 * GROWTH_MAX // 2


def metrics(victim: Victim, wanted: str) -> dict[str, int]:
    """Values below ``$SYS/broker/`` that *wanted*, a filter, covers, as they are published next."""
    found: dict[str, int] = {}
    with Attacker(victim.mqtt_port) as watcher:
        watcher.flood([raw.connect("watcher"), raw.subscribe(1, (f"$SYS/broker/{wanted}", 0))])
        for _ in range(len(Held) + 2):
            topic, value = _message(watcher)
            found[topic.removeprefix("$SYS/broker/")] = int(value)
    return found


def _message(watcher: Attacker) -> tuple[str, bytes]:
    while True:
        buffer = watcher.heard
        if len(buffer) >= 2 and len(buffer) >= 2 + buffer[1]:
            packet, watcher.heard = buffer[: 2 + buffer[1]], buffer[2 + buffer[1] :]
            if packet[0] >> 4 == raw.PUBLISH:
                end = 4 + int.from_bytes(packet[2:4])
                return packet[4:end].decode(), packet[end:]
        else:
            data = watcher.socket.recv(1 << 16)
            assert data, "closed"
            watcher.heard += data


@pytest.mark.long
def test_memory_follows_what_is_counted(make_victim: Callable[..., Victim]) -> None:
    victim = make_victim(
        broker='system_topics_interval = "1s"\nconnection_held_limit = "400mb"',
    )
    with connected(victim) as one, connected(victim) as two, connected(victim) as three:
        one.flood(_transactions(), patience_s=20)
        one.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        one.until(b"there")
        half_a_message(two)
        three.flood(
            (
                frame_of("SEND", {"destination": f"/topic/k/{n}", "retain": "true"} | NOTES, b"x")
                for n in range(600)
            ),
            patience_s=20,
        )
        three.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        three.until(b"there")
        counted = metrics(victim, "held/#")
        while counted["held/input/bytes"] < 44 * MB:  # it may have been read since
            counted = metrics(victim, "held/#")
        assert counted["held/bytes"] > 150 * MB
        assert victim.rss_bytes - victim.base_bytes < counted["held/bytes"] * 1.5 + 24 * MB
