"""What it costs the others that somebody watches: a console that is open, and scrapes.

One gateway, with as many queues as are asked for, a message in each; windows of one load with and without somebody who watches
follow each other, and what is compared are medians over all windows. On a machine that does other work, too, a window says little,
and a ratio of medians says how sure it is by itself: what 95 of 100 resamplings come to (bootstrap).
"""

import contextlib
import json
import random
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from benchkit.brokers import BENCHMARKS, TIDEGATE, tidegate_config, toml_string
from benchkit.generator import good_report_of
from benchkit.process import BrokerProcess
from benchkit.report import percentile
from benchkit.wire import connect, exchange, frame, packet
from benchkit.wire import field as text

#: Of the throughput without anybody who watches; of the other clients' p99; and a scrape, in milliseconds (issue 16).
THROUGHPUT_MIN: Final = 0.97
P99_MAX: Final = 1.10
SCRAPE_MS_MAX: Final = 100.0

#: The small clients, and how often each publishes a message that it gets back: a tenth of what a processor can do.
CLIENTS: Final = 8
_EVERY_S: Final = 0.02
_ANSWER_S: Final = 60.0
_RESAMPLINGS: Final = 2000
_MESSAGES_MAX: Final = 2_000_000
_PUBLISH: Final = 0x32
_PUBACK: Final = 0x40
_NUMBER: Final = 8


class Ports(NamedTuple):
    """Where the gateway listens."""

    stomp: int
    mqtt: int
    admin: int


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """One measurement.

    Attributes:
        without, beside: the figure of each window, in *unit*.
        result: the ratio of their medians, and *low* and *high* what 95 of 100 resamplings come to; of `scrape` the median.
        cpu_us, cpu_beside_us: of the gateway's own process for a message, medians: what other programs on the machine
            change least.
    """

    name: str
    unit: str = ""
    without: Sequence[float] = ()
    beside: Sequence[float] = ()
    result: float = 0.0
    low: float = 0.0
    high: float = 0.0
    cpu_us: float = 0.0
    cpu_beside_us: float = 0.0
    goal: str = ""
    reached: bool = False
    error: str = ""

    @property
    def broker(self) -> str:
        """No other broker is watched."""
        return TIDEGATE

    def line(self) -> str:
        """One line for people."""
        if self.error:
            return f"{self.name:<11} failed: {self.error}"
        verdict = f"goal {'reached' if self.reached else 'missed'}: {self.goal}"
        if not self.without:
            worst = max(self.beside)
            return (
                f"{self.name:<11} {self.result:.1f} {self.unit} (worst {worst:.1f}, {len(self.beside)} times);"
                f" {verdict}"
            )
        medians = f"{statistics.median(self.without):,.2f} -> {statistics.median(self.beside):,.2f}"
        return (
            f"{self.name:<11} {medians} {self.unit}: {self.result:.3f} ({self.low:.3f} to {self.high:.3f}, "
            f"{len(self.beside)} windows each); {verdict}; CPU a message {self.cpu_us:,.1f} -> {self.cpu_beside_us:,.1f} us"
        )


def config(data: Path, ports: Ports) -> str:
    """The gateway's configuration: as in the other benchmarks, and a listener for operators."""
    token = toml_string(str(data.with_name("admin.token")))
    return tidegate_config(data, {"mqtt": ports.mqtt, "stomp": ports.stomp}) + (
        f'\n[[listeners]]\nprotocol = "admin"\nbind = "127.0.0.1:{ports.admin}"\ntoken_file = {token}\n'
    )


def fill(port: int, queues: int) -> None:
    """Make so many queues, with a message in each. Raises: OSError."""
    with socket.create_connection(("127.0.0.1", port), _ANSWER_S) as client:
        client.sendall(frame("CONNECT", accept_version="1.2", host="bench"))
        _read_frame(client)
        for number in range(queues):
            more = {"receipt": "all"} if number == queues - 1 else {}
            destination = f"/queue/watched.{number % 100}.{number:06d}"
            client.sendall(frame("SEND", b"x", destination=destination, persistent="true", **more))
        _read_frame(client)


def _read_frame(client: socket.socket) -> None:
    while not (data := client.recv(1 << 16)).rstrip(b"\n").endswith(b"\0"):
        if not data:
            raise OSError("the gateway closed the connection")


class Watcher:
    """Somebody who watches, or does not, from moment to moment. Attributes: scrapes: how long each took, in seconds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.scrapes: list[float] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """For the length of a `with` block. Raises: OSError."""
        self._say()
        yield
        self._say()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("nobody watched: what asks the gateway has ended")
        self.scrapes += json.loads(line)

    def _say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def watcher(port: int, token: str) -> Iterator[Watcher]:
    """A process that asks the gateway what a console and Prometheus ask it."""
    command = [sys.executable, "-m", "benchkit.instead.polling", str(port), token]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=BENCHMARKS, text=True) as process:
        try:
            yield Watcher(process)
        finally:
            process.kill()


@dataclass(slots=True)
class Client:
    """A small client: MQTT 3.1.1, it publishes at QoS 1 to a topic that it subscribes to."""

    socket: socket.socket
    topic: bytes
    due: float = 0.0
    data: bytearray = field(default_factory=bytearray)
    packet_id: int = 0

    @classmethod
    def connected(cls, port: int, number: int) -> "Client":
        """Raises: OSError."""
        client = socket.create_connection(("127.0.0.1", port), _ANSWER_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        topic = f"watched/{number}".encode()
        exchange(client, connect(f"small{number}"), 4)
        exchange(client, packet(0x82, b"\0\1" + text(topic) + b"\1"), 5)
        return cls(client, topic)

    def publish(self, now: float) -> None:
        """Send a message that says when it was sent."""
        self.packet_id = self.packet_id % 60_000 + 1
        sent = int(now * 1e9).to_bytes(_NUMBER, "big")
        rest = text(self.topic) + self.packet_id.to_bytes(2, "big") + sent
        self.socket.sendall(packet(_PUBLISH, rest))

    def received(self) -> list[float]:
        """When those that have come now were sent; they are acknowledged. Raises: OSError."""
        more = self.socket.recv(1 << 16)
        if not more:
            raise OSError("the gateway closed the connection of a small client")
        data, sent = self.data, list[float]()
        data += more
        while len(data) >= 2 and len(data) >= 2 + data[1]:  # none is as long as 128 bytes
            whole = bytes(data[: 2 + data[1]])
            del data[: len(whole)]
            if whole[0] & 0xF0 == _PUBLISH & 0xF0:
                packet_id = whole[-_NUMBER - 2 : -_NUMBER]
                self.socket.sendall(packet(_PUBACK, packet_id))
                sent.append(int.from_bytes(whole[-_NUMBER:], "big") / 1e9)
        return sent


class Clients:
    """Some of them, which go on in all windows. Args: seconds: how long a window is."""

    def __init__(self, port: int, count: int, seconds: float) -> None:
        self._all = {
            each.socket: each for each in (Client.connected(port, n) for n in range(count))
        }
        self._seconds = seconds

    def window(self) -> list[float]:
        """Publish for so long. Returns: how long each message took to come, in seconds. Raises: OSError."""
        begin = time.perf_counter()
        end, taken = begin + self._seconds, list[float]()
        for number, each in enumerate(self._all.values()):
            each.due = begin + _EVERY_S * number / len(self._all)
        left = 0
        while (now := time.perf_counter()) < end or left:
            if now > end + _ANSWER_S:
                raise OSError("messages of small clients did not come")
            due = min(each.due for each in self._all.values()) if now < end else now + _EVERY_S
            ready, _, _ = select.select(list(self._all), [], [], max(0.0, due - now))
            for each in ready:
                sent = self._all[each].received()
                came = time.perf_counter()
                taken += [came - at for at in sent]
                left -= len(sent)
            now = time.perf_counter()
            for each in self._all.values():
                if each.due <= now < end:
                    each.publish(now)
                    each.due += _EVERY_S
                    left += 1
        return taken

    def close(self) -> None:
        """End them."""
        for each in self._all:
            each.close()


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a measurement needs. Args: seconds: of each window; windows: with somebody who watches, and without."""

    broker: BrokerProcess
    ports: Ports
    watcher: Watcher
    seconds: float
    windows: int


def in_turn(
    bench: Bench, name: str, unit: str, window: Callable[[], tuple[float, int]]
) -> WatchedRun:
    """Windows with and without somebody who watches. Args: window: the figure of one, and how many messages it had."""
    figures: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    window()  # warm
    for number in range(2 * bench.windows):
        is_watched = (
            number + 1
        ) // 2 % 2 == 1  # without, beside, beside, without: what drifts is for both
        before = bench.broker.cpu_seconds()
        with bench.watcher.watching() if is_watched else contextlib.nullcontext():
            figure, messages = window()
        figures[is_watched].append(figure)
        cpu[is_watched].append(1e6 * (bench.broker.cpu_seconds() - before) / messages)
    low, high = interval(figures[False], figures[True])
    return WatchedRun(
        name,
        unit,
        figures[False],
        figures[True],
        statistics.median(figures[True]) / statistics.median(figures[False]),
        low,
        high,
        statistics.median(cpu[False]),
        statistics.median(cpu[True]),
    )


def interval(without: Sequence[float], beside: Sequence[float]) -> tuple[float, float]:
    """Of the ratio of the medians: what 95 of 100 resamplings come to; always the same for the same figures."""
    chance = random.Random(0)
    ratios = [
        statistics.median(chance.choices(beside, k=len(beside)))
        / statistics.median(chance.choices(without, k=len(without)))
        for _ in range(_RESAMPLINGS)
    ]
    return percentile(ratios, 0.025), percentile(ratios, 0.975)


def latency(bench: Bench) -> WatchedRun:
    """The p99 of what small clients wait for their messages."""
    clients = Clients(bench.ports.mqtt, CLIENTS, bench.seconds)

    def window() -> tuple[float, int]:
        taken = clients.window()
        return 1000 * percentile(taken, 0.99), len(taken)

    try:
        run = in_turn(bench, "latency", "ms p99", window)
    finally:
        clients.close()
    goal = f"at most {P99_MAX:g} of what it is without"
    return replace(run, goal=goal, reached=run.result <= P99_MAX)


def throughput(bench: Bench) -> WatchedRun:
    """Messages a second from a producer to a consumer."""
    load = [
        f"-addr=127.0.0.1:{bench.ports.stomp}",
        "-destination=/queue/bench.watched",
        "-window=256",
    ]
    load += [
        f"-duration={bench.seconds:g}s",
        f"-messages={_MESSAGES_MAX}",
        "-send-header=persistent:true",
    ]

    def window() -> tuple[float, int]:
        report = good_report_of(load, bench.seconds + 60)
        return float(report["messages_per_s"]), int(report["messages"])

    run = in_turn(bench, "throughput", "messages/s", window)
    goal = f"at least {THROUGHPUT_MIN:g} of what it is without"
    return replace(run, goal=goal, reached=run.result >= THROUGHPUT_MIN)


def scrape(bench: Bench) -> WatchedRun:
    """How long /metrics took, in the measurements before it or a window of its own, in milliseconds."""
    if not bench.watcher.scrapes:
        with bench.watcher.watching():
            time.sleep(bench.seconds)
    times = [1000 * each for each in bench.watcher.scrapes]
    median = statistics.median(times)
    goal = f"median at most {SCRAPE_MS_MAX:g} ms"
    return WatchedRun("scrape", "ms", (), times, median, goal=goal, reached=median <= SCRAPE_MS_MAX)


MEASUREMENTS: Final = {each.__name__: each for each in (latency, throughput, scrape)}


def measure(name: str, bench: Bench) -> WatchedRun:
    """Make one measurement; what goes wrong is in the run."""
    try:
        return MEASUREMENTS[name](bench)
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        return WatchedRun(name, error=f"{error}; {bench.broker.tail(1)}")
