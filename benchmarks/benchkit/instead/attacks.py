"""Clients that mean harm, one at a time: what `bench.py --hostile` runs beside a client that does not.

Each is a process of its own, run as `-m benchkit.instead.attacks NAME MQTT_PORT STOMP_PORT WS_PORT`. It prepares what
it needs, prints "ready", and goes on until it is killed. All are within the limits that the gateway
has by default: what a limit refuses is no attack on time.
"""

import contextlib
import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from benchkit.wire import connect, field, frame, packet, publish_v5

#: One read of the gateway's is up to 256,000 bytes, and it reads up to 32 times in a turn.
_FLOOD_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the gateway listens on 127.0.0.1."""

    mqtt: int
    stomp: int
    ws: int


class Client:
    """A connection that throws away what it is told, after it has been counted."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._seen = threading.Semaphore(0)
        self._wanted = b""
        self._tail = b""
        threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.socket.recv(1 << 20):
                wanted = self._wanted
                if wanted:
                    data = self._tail + data
                    for _ in range(data.count(wanted)):
                        self._seen.release()
                    self._tail = data[len(data) - len(wanted) + 1 :] if len(wanted) > 1 else b""
        self._seen.release()

    def ask(self, data: bytes, answer: bytes) -> None:
        """Send *data* and wait until *answer* has come once more."""
        self._wanted = answer
        self.socket.sendall(data)
        self._seen.acquire()

    def leave(self) -> None:
        """Close the connection, which closing the socket would not do while the thread reads."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def flood(self, data: bytes) -> None:
        """Send *data* again and again."""
        while True:
            self.socket.sendall(data)


_STOMP_CONNECT: Final = frame("CONNECT", accept_version="1.2", host="x")


def mqtt(ports: Ports, level: int = 4) -> Client:
    """A connected MQTT client."""
    client = Client(ports.mqtt)
    client.ask(connect(f"attack-{os.getpid()}-{id(client)}", level), b"\x20")
    return client


def stomp(ports: Ports) -> Client:
    """A connected STOMP client."""
    client = Client(ports.stomp)
    client.ask(_STOMP_CONNECT, b"CONNECTED")
    return client


def mqtt_pings(ports: Ports) -> Iterator[None]:
    """PINGREQ as fast as the socket takes them."""
    client = mqtt(ports)
    yield
    client.flood(b"\xc0\0" * (_FLOOD_BYTES // 2))


def many_connections(ports: Ports) -> Iterator[None]:
    """The same from 30 connections at a time."""
    clients = [mqtt(ports) for _ in range(30)]
    yield
    data = b"\xc0\0" * (_FLOOD_BYTES // 64)
    for client in clients:
        threading.Thread(target=client.flood, args=(data,), daemon=True).start()
    threading.Event().wait()


def web_socket_pings(ports: Ports) -> Iterator[None]:
    """PINGREQ, each in a WebSocket message of its own."""
    client = Client(ports.ws)
    request = (
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    client.ask(request.encode(), b"\r\n\r\n")
    hello = connect("attack-ws")
    client.ask(bytes((0x82, 0x80 | len(hello))) + b"\0\0\0\0" + hello, b"\x20\x02")
    yield
    client.flood(b"\x82\x82\0\0\0\0\xc0\0" * (_FLOOD_BYTES // 8))


def stomp_sends(ports: Ports) -> Iterator[None]:
    """The smallest SEND to a topic that nobody reads."""
    client = stomp(ports)
    yield
    client.flood(b"SEND\ndestination:/topic/x\n\n\0" * 40_000)


def stomp_headers(ports: Ports) -> Iterator[None]:
    """SEND with as many tiny headers as a listener takes."""
    client = stomp(ports)
    lines = "".join(f"{n}:\n" for n in range(120))
    yield
    client.flood(f"SEND\ndestination:/topic/x\n{lines}\n\0".encode() * 2000)


def stomp_beats(ports: Ports) -> Iterator[None]:
    """Nothing but line ends."""
    client = stomp(ports)
    yield
    client.flood(b"\r\n" * (_FLOOD_BYTES // 2))


def mqtt_filters(ports: Ports) -> Iterator[None]:
    """SUBSCRIBE and UNSUBSCRIBE with a thousand filters each."""
    client = mqtt(ports)
    filters = [field(f"f/{n}/+/x".encode()) for n in range(1000)]
    data = packet(0x82, b"\0\1" + b"".join(each + b"\1" for each in filters))
    data += packet(0xA2, b"\0\2" + b"".join(filters))
    yield
    client.flood(data)


def mqtt_same_filter(ports: Ports) -> Iterator[None]:
    """SUBSCRIBE to one filter, as often as a packet may hold it."""
    client = mqtt(ports)
    yield
    client.flood(packet(0x82, b"\0\1" + (field(b"x") + b"\0") * 4096))


def mqtt_properties(ports: Ports) -> Iterator[None]:
    """MQTT 5.0 PUBLISH with as many user properties as are taken."""
    client = mqtt(ports, 5)
    yield
    client.flood(publish_v5(b"t", b"\x26\0\1a\0\0" * 1000) * 100)


def selector(ports: Ports) -> Iterator[None]:
    """A LIKE that nearly matches the longest user property, again and again."""
    client = stomp(ports)
    pattern = "%" + "_a" * 31 + "b%" + "_a" * 31 + "c%"
    client.ask(
        frame(
            "SUBSCRIBE", id=1, destination="/topic/like", selector=f"p LIKE '{pattern}'", receipt=1
        ),
        b"RECEIPT",
    )
    publisher = mqtt(ports, 5)
    yield
    properties = b"\x26" + field(b"p") + field(b"a" * 60_000)
    publisher.flood(publish_v5(b"like", properties) * 4)


def queue_wildcards(ports: Ports) -> Iterator[None]:
    """50 wildcard subscriptions over 5,000 queues, made and ended."""
    client = stomp(ports)
    for start in range(0, 5000, 100):
        sends = [
            frame("SEND", destination=f"/queue/wild.{n}.a", expires=1)
            for n in range(start, start + 100)
        ]
        last = frame("SEND", destination=f"/queue/wild.{start}.a", expires=1, receipt=start)
        client.ask(b"".join(sends) + last, b"RECEIPT")
    yield
    begin = b"".join(
        frame("SUBSCRIBE", id=n, destination="/queue/wild.>", ack="client") for n in range(50)
    )
    end = b"".join(frame("UNSUBSCRIBE", id=n) for n in range(50))
    marker = frame("SEND", destination="/topic/x", receipt="r")
    while True:
        client.ask(begin + end + marker, b"RECEIPT")


def _subscriber(ports: Ports) -> Client:
    client = stomp(ports)
    subscribes = b"".join(
        frame("SUBSCRIBE", id=n, destination=f"/topic/churn.{n}.*", ack="client")
        for n in range(1000)
    )
    client.ask(subscribes + frame("SEND", destination="/topic/x", receipt="r"), b"RECEIPT")
    return client


def subscription_churn(ports: Ports) -> Iterator[None]:
    """Connections that subscribe a thousand times, and go."""
    yield
    while True:
        _subscriber(ports).leave()


def subscribers(ports: Ports) -> Iterator[None]:
    """The same, and they stay: there are more of them for as long as it lasts."""
    yield
    kept: list[Client] = []
    while True:
        kept.append(_subscriber(ports))


def commits(ports: Ports) -> Iterator[None]:
    """Transactions as large as they may be."""
    client = stomp(ports)
    yield
    sends = frame("SEND", destination="/topic/commit", transaction="t") * 4999
    data = frame("BEGIN", transaction="t") + sends + frame("COMMIT", transaction="t", receipt="r")
    while True:
        client.ask(data, b"RECEIPT")


def stored_commits(ports: Ports) -> Iterator[None]:
    """The same to a queue, which stores each of them."""
    client = stomp(ports)
    yield
    sends = frame("SEND", destination="/queue/commit", expires=1, transaction="t") * 4999
    data = frame("BEGIN", transaction="t") + sends + frame("COMMIT", transaction="t", receipt="r")
    while True:
        client.ask(data, b"RECEIPT")


def cumulative_ack(ports: Ports) -> Iterator[None]:
    """10,000 messages acknowledged by one ACK."""
    client = stomp(ports)
    client.ask(
        frame(
            "SUBSCRIBE",
            id=1,
            destination="/queue/cumulative",
            ack="client",
            prefetch_count=10_000,
            receipt="s",
        ),
        b"RECEIPT",
    )
    yield
    send = frame("SEND", destination="/queue/cumulative")
    while True:
        client.ask(
            send * 9999 + frame("SEND", destination="/queue/cumulative", receipt="r"), b"RECEIPT"
        )
        client.socket.sendall(frame("UNSUBSCRIBE", id=1))
        client.ask(
            frame(
                "SUBSCRIBE",
                id=1,
                destination="/queue/cumulative",
                ack="auto",
                receipt="s",
            ),
            b"RECEIPT",
        )


def retained_scans(ports: Ports) -> Iterator[None]:
    """A filter that covers 20,000 retained messages, subscribed to again and again."""
    client = mqtt(ports)
    for start in range(0, 20_000, 500):
        publishes = b"".join(
            packet(0x31, field(f"r/{n}/x".encode()) + b"v") for n in range(start, start + 500)
        )
        client.ask(publishes + b"\xc0\0", b"\xd0\0")
    yield
    subscribe = packet(0x82, b"\0\1" + field(b"r/#") + b"\0")
    client.flood(subscribe * 100)


def fan_out(ports: Ports) -> Iterator[None]:
    """A thousand subscriptions to one topic, and a publisher to it."""
    client = stomp(ports)
    for n in range(1000):
        client.socket.sendall(frame("SUBSCRIBE", id=n, destination="/topic/fan"))
    client.ask(frame("SEND", destination="/topic/x", receipt="r"), b"RECEIPT")
    other = stomp(ports)
    yield
    other.flood(frame("SEND", destination="/topic/fan") * 5000)


def deep_filters(ports: Ports) -> Iterator[None]:
    """Filters that agree with a topic in all levels but the last."""
    client = mqtt(ports)
    levels = 10
    chosen = itertools.islice(itertools.product("a+", repeat=levels), 1000)
    filters = [field(("/".join(each) + "/b").encode()) for each in chosen]
    client.ask(packet(0x82, b"\0\1" + b"".join(each + b"\0" for each in filters)), b"\x90")
    yield
    topics = [f"{'a/' * levels}{n}" for n in range(10_000)]
    client.flood(b"".join(packet(0x30, field(topic.encode()) + b"x") for topic in topics))


def stored_sends(ports: Ports) -> Iterator[None]:
    """The smallest message to a queue, which stores each of them."""
    client = stomp(ports)
    yield
    client.flood(frame("SEND", destination="/queue/stored", expires=1) * 10_000)


def retained_churn(ports: Ports) -> Iterator[None]:
    """Retained messages of 1,000 topics, set and cleared."""
    client = mqtt(ports)
    topics = [field(f"churn/{n}/x".encode()) for n in range(1000)]
    data = b"".join(packet(0x31, topic + b"v") for topic in topics)
    yield
    client.flood(data + b"".join(packet(0x31, topic) for topic in topics))


def like_selectors(ports: Ports) -> Iterator[None]:
    """Messages to a topic with 500 subscriptions, each with another LIKE."""
    client = stomp(ports)
    for n in range(500):
        pattern = f"p LIKE '%{'_a' * 10}b{n}%'"
        client.socket.sendall(
            frame("SUBSCRIBE", id=n, destination="/topic/likes", selector=pattern)
        )
    client.ask(frame("SEND", destination="/topic/x", receipt="r"), b"RECEIPT")
    other = stomp(ports)
    yield
    other.flood(frame("SEND", destination="/topic/likes", p="a" * 1000) * 1000)


def mqtt_aliases(ports: Ports) -> Iterator[None]:
    """Topic aliases that stand for another name of 60,000 characters each time."""
    client = mqtt(ports, 5)
    yield
    names = [bytes([97 + n]) * 60_000 for n in range(8)]
    client.flood(
        b"".join(publish_v5(name, b"\x23\0" + bytes([n + 1])) for n, name in enumerate(names))
    )


def connections(ports: Ports) -> Iterator[None]:
    """Connect, and go, as fast as can be."""
    yield
    hello = connect("attack-storm")
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", ports.mqtt)) as one,
        ):
            one.sendall(hello)
            one.recv(4)


ATTACKS: Final[dict[str, Callable[[Ports], Iterator[None]]]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        mqtt_pings,
        many_connections,
        web_socket_pings,
        stomp_sends,
        stomp_headers,
        stomp_beats,
        mqtt_filters,
        mqtt_same_filter,
        mqtt_properties,
        selector,
        queue_wildcards,
        subscription_churn,
        subscribers,
        commits,
        stored_commits,
        cumulative_ack,
        retained_scans,
        fan_out,
        deep_filters,
        stored_sends,
        retained_churn,
        like_selectors,
        mqtt_aliases,
        connections,
    )
}


def main(arguments: list[str]) -> None:
    """Run one attack until this process is killed."""
    name, *ports = arguments
    attack = ATTACKS[name](Ports(*map(int, ports)))
    next(attack)
    print("ready", flush=True)
    next(attack, None)


if __name__ == "__main__":
    main(sys.argv[1:])
