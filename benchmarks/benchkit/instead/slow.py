"""What consumers that do not keep up cost the others, and what subscriptions cost that nobody serves.

Measurements, each on a broker that has just started. The first has its goal in
microseconds; the others are ratios of two loads that run in turn, round by round.
"""

import contextlib
import dataclasses
import re
import socket
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from benchkit.brokers import BROKERS, TIDEGATE, Address, BrokerSpec
from benchkit.generator import good_report_of
from benchkit.process import BrokerProcess
from benchkit.wire import exchange, field, frame, packet

#: Subscriptions in the measurements of topics, and how many of them are stopped in one of these.
SUBSCRIPTIONS: Final = 1000
STOPPED: Final = 10

#: What publishing may cost for each durable subscription whose client is away, in microseconds.
COST_US_MAX: Final = 3.0
#: Of the rate of a thousand subscribers that read, with ten that do not.
STOPPED_SHARE_MIN: Final = 0.95
#: Of the others' p99 beside a consumer that acknowledges nothing.
UNACKNOWLEDGED_SHARE_MAX: Final = 1.10

#: More pairs than these are told as their medians.
_SHOWN_MAX: Final = 5
_ANSWER_SECONDS: Final = 30.0
_QUIET_SECONDS: Final = 0.3
_SIZE_BYTES: Final = 256
_MESSAGES_MAX: Final = 2_000_000
#: What waits in the queue of the consumer that acknowledges nothing.
_UNACKNOWLEDGED: Final = 10_000
_UNACKNOWLEDGED_QUEUE: Final = "/queue/bench.unacknowledged"

#: Into how many parts a round is divided where what is measured is small: the more often it comes and goes,
#: the less other programs have to say.
_PARTS: Final = 6

#: What is published to stopped subscribers before the measurement.
_FILL_BYTES: Final = 64 << 10
_FILL_MESSAGES: Final = 400

#: Of the load generator, with the broker's CPU for a message, in microseconds.
Report: TypeAlias = Mapping[str, Any]
_CPU: Final = "broker_cpu_us"

#: Without and beside what is measured.
_Pair: TypeAlias = tuple[Report, Report]


@dataclass(frozen=True, slots=True)
class SlowRun:
    """One measurement of one broker.

    Attributes:
        name: of the measurement.
        without, beside: the figure in each round without and beside what is measured, in *unit*.
        cpu_us, cpu_beside_us: of the broker for a message, with all its deliveries, medians: what other
            programs on the machine change least.
        result: what they come to, and what the goal is about; *goal* says it in words.
    """

    broker: str
    name: str
    unit: str = ""
    without: Sequence[float] = ()
    beside: Sequence[float] = ()
    cpu_us: float = 0.0
    cpu_beside_us: float = 0.0
    result: float = 0.0
    goal: str = ""
    reached: bool = False
    error: str = ""

    def line(self) -> str:
        """One line for people."""
        if self.error:
            return f"{self.broker:<10} {self.name:<15} failed: {self.error}"
        pairs = list(zip(self.without, self.beside, strict=True))
        if len(pairs) > _SHOWN_MAX:
            pairs = [(statistics.median(self.without), statistics.median(self.beside))]
        rounds = "  ".join(f"{one:,.0f} -> {two:,.0f}" for one, two in pairs)
        verdict = "reached" if self.reached else "missed"
        return (
            f"{self.broker:<10} {self.name:<15} {rounds} {self.unit}: {self.result:.2f}; "
            f"goal {verdict}: {self.goal}; CPU a message {self.cpu_us:,.1f} -> "
            f"{self.cpu_beside_us:,.1f} us"
        )


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that a measurement needs. Args: seconds: of each load; rounds: of each pair."""

    spec: BrokerSpec
    broker: BrokerProcess
    stomp: Address
    mqtt: Address
    login: tuple[str, str]
    seconds: float
    rounds: int

    def load(self, address: Address, *arguments: str) -> Report:
        """Run the load generator. Raises: RuntimeError when a message is lost or it cannot run."""
        user, password = self.login
        cpu = self.broker.cpu_seconds()
        options = [f"-addr={address}", f"-size={_SIZE_BYTES}", f"-messages={_MESSAGES_MAX}"]
        options += [f"-duration={self.seconds:g}s", *arguments]
        options += [f"-user={user}", f"-pass={password}"] if user else []
        report = good_report_of(options, self.seconds + 60)
        if faults := sum(int(report[key]) for key in ("lost", "duplicates", "corrupt")):
            raise RuntimeError(f"{faults} messages lost, repeated or damaged")
        used = self.broker.cpu_seconds() - cpu
        return report | {_CPU: 1e6 * used / max(1, int(report["messages"]))}

    def publish(self, topic: str) -> Report:
        """Publish at QoS 1."""
        load = ["-protocol=mqtt", f"-destination={topic}", "-consumers=0", "-window=256"]
        return self.load(self.mqtt, *load)


# ------------------------------------------------------------------------------------- clients


class Sleeper:
    """An MQTT client that subscribes and then does nothing, not even read."""

    def __init__(self, bench: Bench, client_id: str, topic: str, *, clean: bool, qos: int) -> None:
        self._socket = socket.socket()
        # The less the kernel keeps for it, the sooner it is the broker that has to.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(_ANSWER_SECONDS)
        self._socket.connect((bench.mqtt.host, bench.mqtt.port))
        user, password = bench.login
        flags = (2 if clean else 0) | (0xC0 if user else 0)
        payload = field(client_id.encode())
        if user:
            payload += field(user.encode()) + field(password.encode())
        hello = packet(0x10, field(b"MQTT") + bytes((4, flags)) + b"\0\0" + payload)
        exchange(self._socket, hello, 4)
        subscribe = packet(0x82, b"\0\1" + field(topic.encode()) + bytes((qos,)))
        exchange(self._socket, subscribe, 5)

    def leave(self) -> None:
        """Say goodbye: what it subscribed to with a session stays."""
        self._socket.sendall(packet(0xE0, b""))
        self._socket.close()

    def close(self) -> None:
        """Close the connection without a word."""
        self._socket.close()


@contextlib.contextmanager
def holding_back(
    stomp: Address, login: tuple[str, str] = ("", ""), spec: BrokerSpec = BROKERS[TIDEGATE]
) -> Iterator[None]:
    """Have a STOMP consumer that takes all that it is given, and acknowledges none of it."""
    with _stomp_client(stomp, login) as client:
        send = dict(each.split(":", 1) for each in spec.queue_send)
        for number in range(_UNACKNOWLEDGED):
            last = {"receipt": "sent"} if number == _UNACKNOWLEDGED - 1 else {}
            client.sendall(
                frame(
                    "SEND",
                    b"x" * _SIZE_BYTES,
                    destination=_UNACKNOWLEDGED_QUEUE,
                    persistent="true",
                    **send,
                    **last,
                )
            )
        _read_until(client, b"receipt-id:sent")
        _subscribe(client, spec)
        _read_until(client, b"MESSAGE")
        # What it may have unacknowledged has come: handing that out is not what is measured.
        client.settimeout(_QUIET_SECONDS)
        with contextlib.suppress(TimeoutError):
            while client.recv(1 << 16):
                pass
        yield


def _drain(bench: Bench) -> None:
    """Consume what the consumer left that acknowledges nothing."""
    with _stomp_client(bench.stomp, bench.login) as client:
        _subscribe(client, bench.spec)
        left, rest = _UNACKNOWLEDGED, b""
        while left > 0:
            data = client.recv(1 << 16)
            if not data:
                raise OSError("the broker closed the connection of a consumer that empties a queue")
            whole, _, rest = (rest + data).rpartition(b"\0")
            acks = re.findall(rb"\nack:([^\r\n]+)\r?\n", whole)
            client.sendall(b"".join(frame("ACK", id=each.decode()) for each in acks))
            left -= len(acks)
        client.sendall(frame("DISCONNECT", b"", receipt="emptied"))
        _read_until(client, b"emptied")


@contextlib.contextmanager
def _stomp_client(stomp: Address, login: tuple[str, str]) -> Iterator[socket.socket]:
    user, password = login
    headers = {"login": user, "passcode": password} if user else {}
    with socket.create_connection((stomp.host, stomp.port), _ANSWER_SECONDS) as client:
        client.sendall(frame("CONNECT", b"", accept_version="1.2", host="/", **headers))
        _read_until(client, b"CONNECTED")
        yield client


def _subscribe(client: socket.socket, spec: BrokerSpec) -> None:
    """Ask for what waits in the queue, and for each message's acknowledgement."""
    more = dict(each.split(":", 1) for each in spec.queue_subscribe)
    destination = _UNACKNOWLEDGED_QUEUE
    client.sendall(
        frame("SUBSCRIBE", b"", id="0", destination=destination, ack="client-individual", **more)
    )


def _read_until(client: socket.socket, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        data = client.recv(1 << 16)
        if not data:
            raise OSError(f"the broker closed the connection: {seen[-200:]!r}")
        seen = seen[-len(wanted) :] + data


# -------------------------------------------------------------------------------- measurements


def durable(bench: Bench) -> SlowRun:
    """Publishing to a topic with a thousand durable subscriptions whose clients are away."""
    reports = list[_Pair]()
    for number in range(SUBSCRIPTIONS):
        Sleeper(bench, f"away{number}", "bench/durable", clean=False, qos=1).leave()
    Sleeper(bench, "alone", "bench/alone", clean=False, qos=1).leave()
    for _ in range(bench.rounds):
        reports.append((bench.publish("bench/alone"), bench.publish("bench/durable")))
    pairs = [tuple(1e6 / float(each["messages_per_s"]) for each in pair) for pair in reports]
    cost = statistics.median((two - one) / SUBSCRIPTIONS for one, two in pairs)
    goal = f"at most {COST_US_MAX:g} us a subscription"
    return _run(bench, "durable", "us a publish", reports, pairs, cost, goal, cost <= COST_US_MAX)


def stopped(bench: Bench) -> SlowRun:
    """A thousand subscribers at QoS 0, of which ten do not read."""
    reports = list[_Pair]()
    load = ["-protocol=mqtt", "-qos=0", "-clean", "-destination=bench/stopped", "-window=32"]
    for _ in range(bench.rounds):
        without = bench.load(bench.mqtt, *load, f"-consumers={SUBSCRIPTIONS}")
        with contextlib.ExitStack() as stack:
            for number in range(STOPPED):
                sleeper = Sleeper(bench, f"stopped{number}", "bench/stopped", clean=True, qos=0)
                stack.callback(sleeper.close)
            # More than any kernel keeps for a socket: now they are stopped, as the broker sees it.
            fill = ["-consumers=1", f"-size={_FILL_BYTES}", f"-messages={_FILL_MESSAGES}"]
            bench.load(bench.mqtt, *load, *fill)
            beside = bench.load(bench.mqtt, *load, f"-consumers={SUBSCRIPTIONS - STOPPED}")
        reports.append((without, beside))
    pairs = [tuple(float(each["deliveries_per_s"]) for each in pair) for pair in reports]
    share = statistics.median(two / one for one, two in pairs)
    goal = f"at least {STOPPED_SHARE_MIN:g} of the rate"
    return _run(
        bench, "stopped", "deliveries/s", reports, pairs, share, goal, share >= STOPPED_SHARE_MIN
    )


def unacknowledged(bench: Bench) -> SlowRun:
    """The p99 of confirmations, one message at a time, beside a consumer that acknowledges nothing."""
    load = ["-destination=/queue/bench.others", "-window=1", "-send-header=persistent:true"]
    load += [f"-send-header={each}" for each in bench.spec.queue_send]
    load += [f"-subscribe-header={each}" for each in bench.spec.queue_subscribe]
    part = dataclasses.replace(bench, seconds=bench.seconds / _PARTS)

    def beside() -> Report:
        with holding_back(bench.stomp, bench.login, bench.spec):
            report = part.load(bench.stomp, *load)
        _drain(bench)
        return report

    bench.load(bench.stomp, *load)
    beside()  # both ways of it are warm now
    reports = list[_Pair]()
    for number in range(bench.rounds * _PARTS):
        if number % 2:  # what comes first may be slower or quicker for that
            second = beside()
            reports.append((part.load(bench.stomp, *load), second))
        else:
            reports.append((part.load(bench.stomp, *load), beside()))
    pairs = [tuple(float(each["confirm_us"]["p99"]) for each in pair) for pair in reports]
    share = statistics.median(two / one for one, two in pairs)
    goal = f"at most {UNACKNOWLEDGED_SHARE_MAX:g} of the p99 without it"
    return _run(
        bench,
        "unacknowledged",
        "us p99",
        reports,
        pairs,
        share,
        goal,
        share <= UNACKNOWLEDGED_SHARE_MAX,
    )


MEASUREMENTS: Final = {each.__name__: each for each in (durable, stopped, unacknowledged)}


def measure(name: str, bench: Bench) -> SlowRun:
    """Make one measurement; what goes wrong is in the run."""
    try:
        return MEASUREMENTS[name](bench)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return SlowRun(bench.spec.name, name, error=f"{error}; {bench.broker.tail(1)}")


def _run(
    bench: Bench,
    name: str,
    unit: str,
    reports: Sequence[_Pair],
    pairs: Sequence[tuple[float, ...]],
    result: float,
    goal: str,
    reached: bool,
) -> SlowRun:
    """Args: pairs: the figures of *reports* that *result* was made of."""
    without, beside = [list(each) for each in zip(*pairs, strict=True)]
    cpu_us = tuple(
        statistics.median(float(each[_CPU]) for each in side) for side in zip(*reports, strict=True)
    )
    return SlowRun(
        bench.spec.name, name, unit, without, beside, cpu_us[0], cpu_us[1], result, goal, reached
    )
