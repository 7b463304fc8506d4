"""What attackers do to a gateway's memory, each bounded. See :mod:`attack` for the sockets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import mqtt_raw as raw
from attack import MB, Attacker, Victim, connected, frame, frame_of

from tidegate.spi import Held

#: Every attack tries to make it grow by so much; more than an hour's worth of noise, little work.
ATTACK_BYTES = 96 * MB


#: Four header lines of 15 KB.
NOTES = {f"note{number}": "n" * 15_000 for number in range(4)}


MQTT_CONNECT = raw.connect("attacker")


def receipts(attacker: Attacker) -> int:
    """Ask for receipts of 15 KB each, and never read them."""
    one = frame("SEND", b"x", destination="/topic/nobody", receipt="r" * 15_000)
    return attacker.flood([one] * (ATTACK_BYTES // len(one)))


def transactions(attacker: Attacker) -> bytes:
    """Fill open transactions, with little in the bodies and much in the headers."""
    attacker.flood(open_transactions(), patience_s=20)
    attacker.flood([frame("DISCONNECT", receipt="end")])
    return attacker.rest()


def open_transactions() -> Iterator[bytes]:
    per_transaction = 300
    send = b"".join(
        frame("SEND", b"x", destination="/topic/held", transaction="%d", note="n" * 15_000)
        for _ in range(per_transaction)
    )
    for number in range(ATTACK_BYTES // (per_transaction * 15_000)):
        yield frame("BEGIN", transaction=number)
        yield send.replace(b"transaction:%d", b"transaction:%d" % number)


def bodies_before_login(victim: Victim) -> list[Attacker]:
    """Six CONNECTs that announce 90 MB of body, and send a part."""
    head = frame("CONNECT", accept_version="1.2", host="h", content_length=90 * MB)[:-1]
    attackers = [victim.attacker() for _ in range(6)]
    for attacker in attackers:
        attacker.flood([head, *[bytes(MB)] * 16])
    return attackers


QUEUES = [f"/queue/taken{number}" for number in range(8)]


def fill_queues(victim: Victim) -> None:
    """Eight queues of 8 MB each."""
    with connected(victim) as producer:
        body = b"n" * 60_000
        producer.flood(
            (frame("SEND", body, destination=queue) for queue in QUEUES for _ in range(140)),
            patience_s=20,
        )
        producer.flood([frame("SEND", b"", destination="/topic/x", receipt="there")])
        producer.until(b"there")


def take(attacker: Attacker, wanted: int) -> int:
    """Take from them and acknowledge nothing. Returns: bytes that came."""
    attacker.flood(
        frame("SUBSCRIBE", id=number, destination=queue, ack="client")
        for number, queue in enumerate(QUEUES)
    )
    heard = 0
    while heard < wanted:
        data = attacker.socket.recv(1 << 20)
        assert data, "closed"
        heard += len(data)
    attacker.flood([frame("SEND", b"", destination="/topic/x", receipt="now")])
    return heard + len(attacker.until(b"receipt-id:now"))


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


def half_a_message(attacker: Attacker) -> None:
    """Half of a retained SEND, and no more."""
    head = frame("SEND", destination="/topic/half", retain="true", content_length=90 * MB)[:-1]
    attacker.flood([head, *[bytes(MB)] * 45])


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


def metrics(victim: Victim, wanted: str) -> dict[str, int]:
    """Values below ``$SYS/broker/`` that *wanted*, a filter, covers, as they are published next."""
    found: dict[str, int] = {}
    with Attacker(victim.mqtt_port) as watcher:
        watcher.flood([raw.connect("watcher"), raw.subscribe(1, (f"$SYS/broker/{wanted}", 0))])
        for _ in range(len(Held) + 2):
            topic, value = _message(watcher)
            found[topic.removeprefix("$SYS/broker/")] = int(value)
    return found


#: What all that is held and waits in memory is counted in.
COUNTED = ("held/bytes", "in_flight/bytes", "waiting/stored/bytes", "waiting/unstored/bytes")


def counted(victim: Victim) -> int:
    """Bytes that the gateway says it holds, as far as it has published them."""
    found: dict[str, int] = {}
    with Attacker(victim.mqtt_port) as watcher:
        topics = [(f"$SYS/broker/{name}", 0) for name in COUNTED]
        watcher.flood([raw.connect("watcher"), raw.subscribe(1, *topics)])
        while len(found) < len(COUNTED):
            topic, value = _message(watcher)
            found[topic] = int(value)
    return sum(found.values())


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


#: Four header lines of 15 KB.
HEADERS = {f"note{number}": "n" * 15_000 for number in range(4)}


def mqtt_connects(victim: Victim, packets: Iterable[bytes]) -> tuple[list[Attacker], list[int]]:
    """Connect with each of *packets*. Returns: who is connected now, and what each was told."""
    attackers, told = [], []
    for packet in packets:
        attacker = Attacker(victim.mqtt_port, packet)
        attackers.append(attacker)
        while len(attacker.heard) < 4:
            data = attacker.socket.recv(100)
            assert data, "closed without a CONNACK"
            attacker.heard += data
        told.append(attacker.heard[3])
    return attackers, told


def sessions(victim: Victim, count: int, prefix: str = "kept") -> list[int]:
    """Leave sessions behind. Returns: what each client was told; 0 is a welcome."""
    packets = (raw.connect(f"{prefix}{number}", clean=False) for number in range(count))
    attackers, told = mqtt_connects(victim, packets)
    for attacker in attackers:
        attacker.flood([raw.disconnect()])
        attacker.rest()
        attacker.close()
    return told


def forget(victim: Victim, count: int, prefix: str = "kept") -> None:
    """The sessions end."""
    attackers, _ = mqtt_connects(
        victim, (raw.connect(f"{prefix}{number}") for number in range(count))
    )
    for attacker in attackers:
        attacker.close()


def durable_subscriptions(victim: Victim, count: int, prefix: str = "name") -> bytes:
    """Subscribe, durably, and leave, again and again on one connection. Returns: what it was told."""
    with connected(victim, **{"client-id": "durable"}) as attacker:
        for number in range(count):
            attacker.flood(
                [
                    frame_of(
                        "SUBSCRIBE",
                        {
                            "id": number,
                            "destination": f"/topic/t{number}",
                            "durable-subscription-name": f"{prefix}{number}",
                        },
                    ),
                    frame("UNSUBSCRIBE", id=number, receipt=number),
                ],
                patience_s=20,
            )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


def retained(victim: Victim, count: int) -> bytes:
    """Retain little bodies with 60 KB of headers. Returns: what the client was told."""
    with connected(victim) as attacker:
        attacker.flood(
            [
                frame_of(
                    "SEND", {"destination": f"/topic/kept/{n}", "retain": "true", **HEADERS}, b"x"
                )
                for n in range(count)
            ],
            patience_s=20,
        )
        attacker.flood([frame("DISCONNECT", receipt="end")])
        return attacker.rest()


def wills(victim: Victim, count: int) -> list[int]:
    """Connections with wills of 60 KB, all at a time. Returns: what each was told."""
    packets = (raw.connect(f"will{n}", will=("will", bytes(60_000))) for n in range(count))
    attackers, told = mqtt_connects(victim, packets)
    for attacker in attackers:
        attacker.flood([raw.disconnect()])
        attacker.close()
    return told
