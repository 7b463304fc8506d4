"""Measure what a message costs the gateway's event loop, in several checkouts of Tidegate at once.

    .venv/bin/python benchmarks/lockstep.py ../before .          # two trees with a .venv each
    .venv/bin/python benchmarks/lockstep.py . . --acl            # the second one with 100 rules
    .venv/bin/python benchmarks/lockstep.py . . --traces 0.01     # the second one with traces
    .venv/bin/python benchmarks/lockstep.py . . --unacknowledged --only one
    .venv/bin/python benchmarks/lockstep.py ../before . --only qos0 --bursts 100

All gateways run at the same time, and bursts of messages go to one after the other: the next burst when the
last one is received and acknowledged. What counts is the CPU time of each gateway's main thread for a
message, not the clock, and of all bursts the quickest twentieth: other programs can only make one
slower. Differences of a few per cent show like this where rounds of throughput are noise.
"""

import argparse
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Protocol

from benchkit import brokers
from benchkit.access import rules
from benchkit.brokers import Address
from benchkit.instead.slow import holding_back
from benchkit.process import BrokerProcess, BrokerStartError, free_ports, running
from benchkit.report import percentile
from benchkit.tracing import traces
from benchkit.wire import connect, field, frame, packet
from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)

_BODY: Final = b"x" * 256
#: Messages of a burst: what one client may have unconfirmed, and a few turns of the gateway.
_MESSAGES: Final = 512
#: And where one comes after the other.
_ONE_BY_ONE: Final = 64
_WARM_UP: Final = 40
_TIMEOUT_SECONDS: Final = 30.0
#: Between two bursts, so that a gateway has done all that the last one left behind.
_PAUSE_SECONDS: Final = 0.002


class Load(Protocol):
    """Clients of one gateway. Attributes: count: messages of a burst."""

    count: int

    def burst(self) -> None:
        """Send that many messages, receive all, and acknowledge them."""
        ...


def link(stack: ExitStack, port: int, hello: bytes) -> socket.socket:
    """Return a connection that has said *hello* and got an answer; it ends with *stack*."""
    made = stack.enter_context(
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS)
    )
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(hello)
    if not made.recv(4096):
        raise ConnectionError("the gateway closed the connection")
    return made


def receive(source: socket.socket, count: int, measure: Callable[[bytearray], int]) -> bytes:
    """Read until *measure* of what came is *count*."""
    got = bytearray()
    while measure(got) < count:
        data = source.recv(1 << 18)
        if not data:
            raise ConnectionError("the gateway closed the connection")
        got += data
    return bytes(got)


class Stomp:
    """One producer and one consumer of a queue; a receipt and an ACK for each message."""

    count = _MESSAGES
    queue = "/queue/bench.lockstep"

    def __init__(self, stack: ExitStack, port: int) -> None:
        hello = frame("CONNECT", host="bench", accept_version="1.2")
        self._producer, self._consumer = link(stack, port, hello), link(stack, port, hello)
        name = self.queue
        self._consumer.sendall(
            frame("SUBSCRIBE", id=1, destination=name, ack="client-individual", receipt=1)
        )
        receive(self._consumer, 1, _frames)
        self._data = b"".join(
            frame(
                "SEND",
                _BODY,
                destination=name,
                persistent="true",
                receipt=number,
                content_length=len(_BODY),
            )
            for number in range(_MESSAGES)
        )

    def burst(self) -> None:
        self._producer.sendall(self._data)
        messages = receive(self._consumer, _MESSAGES, _frames)
        receive(self._producer, _MESSAGES, _frames)
        ids = re.findall(rb"\nack:([^\n]+)\n", messages)
        self._consumer.sendall(b"".join(frame("ACK", id=each.decode()) for each in ids))


def _frames(data: bytearray) -> int:
    return data.count(b"\0")


class One(Stomp):
    """The same, and nothing is sent before the last message was confirmed and has come.

    Attributes: waits: microseconds from each SEND to its receipt.
    """

    count = _ONE_BY_ONE
    queue = "/queue/bench.one-by-one"

    def __init__(self, stack: ExitStack, port: int) -> None:
        super().__init__(stack, port)
        self._each = [frame_ + b"\0" for frame_ in self._data.split(b"\0")[: self.count]]
        self.waits: list[float] = []

    def burst(self) -> None:
        for each in self._each:
            began = time.perf_counter()
            self._producer.sendall(each)
            receive(self._producer, 1, _frames)
            self.waits.append((time.perf_counter() - began) * 1e6)
            (ack,) = re.findall(rb"\nack:([^\n]+)\n", receive(self._consumer, 1, _frames))
            self._consumer.sendall(frame("ACK", id=ack.decode()))


class Mqtt:
    """Four publishers and one subscriber of a topic."""

    count = _MESSAGES

    def __init__(self, stack: ExitStack, port: int, qos: int) -> None:
        self._qos = qos
        self._publishers = [link(stack, port, connect(f"publisher-{n}")) for n in range(4)]
        self._subscriber = link(stack, port, connect("subscriber"))
        topic = field(b"bench/lockstep")
        self._subscriber.sendall(packet(0x82, b"\0\1" + topic + bytes([qos])))
        receive(self._subscriber, 5, len)
        share = [self._publish(topic, number + 1) for number in range(_MESSAGES // 4)]
        self._data, self._size = b"".join(share), len(share[0])

    def _publish(self, topic: bytes, packet_id: int) -> bytes:
        name = topic + packet_id.to_bytes(2, "big") if self._qos else topic
        return packet(0x30 | self._qos << 1, name + _BODY)

    def burst(self) -> None:
        for publisher in self._publishers:
            publisher.sendall(self._data)
        got = receive(self._subscriber, _MESSAGES * self._size, len)
        if not self._qos:
            return
        for publisher in self._publishers:
            receive(publisher, _MESSAGES, len)  # PUBACKs: 4 bytes for each of a quarter
        at = self._size - len(_BODY) - 2
        ids = (got[begin + at : begin + at + 2] for begin in range(0, len(got), self._size))
        self._subscriber.sendall(b"".join(b"\x40\x02" + each for each in ids))


LOADS: Final[dict[str, tuple[brokers.Protocol, Callable[[ExitStack, int], Load]]]] = {
    "stomp": ("stomp", Stomp),
    "qos1": ("mqtt", lambda stack, port: Mqtt(stack, port, 1)),
    "qos0": ("mqtt", lambda stack, port: Mqtt(stack, port, 0)),
    "one": ("stomp", One),
}


def loop_seconds(broker: BrokerProcess) -> float:
    """CPU of the main thread: the event loop, without the store's threads (proc(5), schedstat)."""
    first = min(broker.pids())
    text = Path(f"/proc/{first}/task/{first}/schedstat").read_text()
    return int(text.split()[0]) / 1e9


def measure(gateways: Sequence[BrokerProcess], loads: Sequence[Load], bursts: int) -> list[float]:
    """Return microseconds of the loop for a message, of each gateway."""
    for load in loads:
        for _ in range(_WARM_UP):
            load.burst()
        if isinstance(load, One):
            load.waits.clear()
    found: list[list[float]] = [[] for _ in loads]
    for turn in range(bursts):
        order = list(range(len(loads)))
        for each in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(_PAUSE_SECONDS)
            before = loop_seconds(gateways[each])
            loads[each].burst()
            time.sleep(_PAUSE_SECONDS)
            used = loop_seconds(gateways[each]) - before
            found[each].append(used / loads[each].count * 1e6)
    return [percentile(times, 0.05) for times in found]


def start(
    stack: ExitStack, tree: Path, directory: Path, *, acl: bool, more: str = ""
) -> tuple[BrokerProcess, dict[brokers.Protocol, int]]:
    """Run the gateway of one tree until *stack* ends. Raises: BrokerStartError."""
    stomp, mqtt = free_ports(2)
    ports: dict[brokers.Protocol, int] = {"stomp": stomp, "mqtt": mqtt}
    directory.mkdir()
    file = None
    if acl:
        file = directory / "rules.toml"
        file.write_text(rules())
    config = directory / "gw.toml"
    config.write_text(brokers.tidegate_config(directory / "data", ports, rules=file) + more)
    command = [str(tree / ".venv/bin/tidegate"), "run", "--config", str(config)]
    # The same hash seed and addresses for all: dictionaries collide alike, caches too.
    command = ["env", "PYTHONHASHSEED=0", *command]
    if setarch := shutil.which("setarch"):
        command = [setarch, "-R", *command]
    addresses = [brokers.Address("127.0.0.1", port) for port in ports.values()]
    broker = stack.enter_context(running(command, directory / "log", addresses))
    return broker, ports


def main() -> int:
    """Measure what the command line says. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description="CPU of the event loop for a message, in several trees at once."
    )
    parser.add_argument("trees", nargs="+", type=Path, help="checkouts; the first is 1.00")
    parser.add_argument("--only", default=",".join(LOADS), help="loads (default: %(default)s)")
    parser.add_argument("--bursts", type=int, default=300, help="of 512 messages (%(default)s)")
    parser.add_argument("--acl", action="store_true", help="the last tree with tidegate-acl")
    parser.add_argument(
        "--traces", type=float, metavar="RATIO", help="the last tree with tidegate-traces"
    )
    parser.add_argument(
        "--unacknowledged",
        action="store_true",
        help="the last tree beside a consumer that acknowledges nothing (see bench.py --slow)",
    )
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := [name for name in names if name not in LOADS]:
        parser.error(f"--only {','.join(unknown)}: the loads are {', '.join(LOADS)}")
    table = Table("load", "tree", "us / message", "ratio", "confirm p50, p99 us")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-lockstep-")))
        last = len(options.trees) - 1
        more = [""] * len(options.trees)
        if options.traces is not None:
            more[last] = traces(stack, options.traces, work)
        try:
            started = [
                start(stack, tree, work / str(at), acl=options.acl and at == last, more=more[at])
                for at, tree in enumerate(options.trees)
            ]
        except (BrokerStartError, OSError) as error:
            console.print(f"a gateway did not start: {error}", style="red")
            return 1
        if options.unacknowledged:
            stack.enter_context(holding_back(Address("127.0.0.1", started[-1][1]["stomp"])))
        for name in names:
            protocol, load = LOADS[name]
            gateways = [gateway for gateway, _ in started]
            loads = [load(stack, ports[protocol]) for _, ports in started]
            costs = measure(gateways, loads, options.bursts)
            for tree, cost, made in zip(options.trees, costs, loads, strict=True):
                waits = made.waits if isinstance(made, One) else []
                told = ", ".join(f"{percentile(waits, at):,.0f}" for at in (0.5, 0.99) if waits)
                table.add_row(name, str(tree), f"{cost:.2f}", f"{cost / costs[0]:.2f}", told)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
