"""Millions of pending messages: memory, the start after a SIGKILL, and how fast they drain.

One measurement: a live load (one producer, one consumer), then a backlog without consumers, SIGKILL
as soon as its last message is confirmed, new starts that are killed as soon as they accept, and one
more, with one consumer a queue until it is empty.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchkit.brokers import Address
from benchkit.generator import good_report_of
from benchkit.process import BrokerProcess, BrokerStartError, accepts, start

#: The goals for 5 million messages of 256 bytes.
MEMORY_BYTES_MAX: Final = 300_000_000
ACCEPT_SECONDS_MAX: Final = 1.0
FIRST_SECONDS_MAX: Final = 4.0
PUBLISH_SHARE_MIN: Final = 0.9
DRAIN_SHARE_MIN: Final = 1.0

_LIVE_SECONDS: Final = 5.0
_LIVE_MESSAGES_MAX: Final = 2_000_000
#: A backlog is published and drained at no less than this, or the run fails.
_RATE_MIN: Final = 2000
#: A peer gets so many times the time that its backlog should take: some do worse than live by then.
_PEER_PATIENCE: Final = 4
_RUN_ID: Final = "-run-id=20240229"
_SIZE_BYTES: Final = 256
_START_SECONDS_MAX: Final = 90.0
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class BacklogRun:
    """One measurement. Times are seconds, memory is bytes.

    Attributes:
        count, queues: messages, and over how many queues they are spread.
        live_rate, live_count: deliveries of the live load before the backlog, a second and in all.
        publish_rate: of the backlog.
        published_peak, published_now: resident memory at the end of publishing.
        empty_s: from starting the gateway on an empty store until it took a connection: what the
            machine and the program take without any message.
        accepts_s: the same for each start of the killed gateway.
        first_s: from the last of these starts until the first message came.
        started_now: resident memory after the first message. drained_peak: the most since then.
        drain_rate: from the first message to the last.
        faults: messages lost, repeated, reordered, damaged or misrouted.
        cpu: CPU seconds of the broker for each phase, by its name.
    """

    broker: str
    count: int
    queues: int
    live_rate: float = 0.0
    live_count: int = 0
    publish_rate: float = 0.0
    published_peak: int = 0
    published_now: int = 0
    empty_s: float = 0.0
    accepts_s: Sequence[float] = ()
    first_s: float = 0.0
    drain_rate: float = 0.0
    drained_peak: int = 0
    faults: int = 0
    cpu: Mapping[str, float] = field(default_factory=dict[str, float])
    error: str = ""

    @property
    def memory_peak(self) -> int:
        """The most resident memory of either process."""
        return max(self.published_peak, self.drained_peak)

    @property
    def accept_s(self) -> float:
        """The quickest start: what the others took longer, other programs on the machine took."""
        return min(self.accepts_s, default=0.0)

    @property
    def publish_share(self) -> float:
        """Publishing the backlog beside the live load."""
        return self.publish_rate / self.live_rate if self.live_rate else 0.0

    @property
    def drain_share(self) -> float:
        """Draining beside the live load."""
        return self.drain_rate / self.live_rate if self.live_rate else 0.0

    def cpu_us(self, phase: str) -> float:
        """CPU of the broker for each message of live, publish or drain: no other program slows it."""
        count = self.live_count if phase == "live" else self.count
        return 1e6 * self.cpu.get(phase, 0.0) / max(1, count)

    @property
    def reached(self) -> bool:
        """All goals are met."""
        return not self.error and all(reached for reached, _ in self.goals())

    def line(self) -> str:
        """One line for people."""
        name = f"{self.broker} {self.count:,} pending in {self.queues:,} queues"
        if self.error:
            return f"{name}: failed: {self.error}"
        killed = ""
        if self.accepts_s:
            killed = (
                f"SIGKILL, accepts after {self.accept_s:.2f} s (the best of "
                f"{' '.join(f'{took:.2f}' for took in self.accepts_s)}; {self.cpu['start']:.1f} s CPU; "
                f"an empty one {self.empty_s:.2f} s), first message after {self.first_s:.2f} s; "
            )
        return (
            f"{name}: published at {self.publish_rate:,.0f}/s, {self.publish_share:.2f} of the live "
            f"{self.live_rate:,.0f}/s; memory {_mb(self.published_now)} then, at most "
            f"{_mb(self.published_peak)}, and {_mb(self.drained_peak)} while it drains; {killed}"
            f"drained at {self.drain_rate:,.0f}/s, {self.drain_share:.2f} of the live; {self.faults} faults; CPU a message: live "
            f"{self.cpu_us('live'):.1f}, published {self.cpu_us('publish'):.1f}, drained "
            f"{self.cpu_us('drain'):.1f} us"
        )

    def goals(self) -> list[tuple[bool, str]]:
        """What was asked for, and whether it was reached; nothing for a run that failed."""
        if self.error:
            return []
        return [
            (self.memory_peak < MEMORY_BYTES_MAX, f"memory {_mb(self.memory_peak)} < 300 MB"),
            (self.accept_s <= ACCEPT_SECONDS_MAX, f"accepts {self.accept_s:.2f} s <= 1 s"),
            (self.first_s <= FIRST_SECONDS_MAX, f"first message {self.first_s:.2f} s <= 4 s"),
            (
                self.publish_share >= PUBLISH_SHARE_MIN,
                f"published at {self.publish_share:.2f} >= 0.9 of live",
            ),
            (self.drain_share >= DRAIN_SHARE_MIN, f"drain {self.drain_share:.2f} >= 1.0 of live"),
            (self.faults == 0, f"{self.faults} faults"),
        ]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def measure(
    name: str,
    command: Sequence[str],
    log: Path,
    address: Address,
    count: int,
    queues: int,
    *,
    live_seconds: float = _LIVE_SECONDS,
    starts: int = 1,
    fill_seconds_max: float | None = None,
    more: Sequence[str] = (),
) -> BacklogRun:
    """Measure one broker that *command* starts on an empty store, and starts again on the same.

    Args:
        queues: producers, queues and consumers, one of each together.
        log: of the first process; ``….restart`` of the last.
        starts: how often the killed one is started; all but the last are killed when they accept. 0:
            it is not killed, and drains as it is.
        fill_seconds_max: the backlog is no more than what its live rate makes in this time; None: *count*.
        more: options for the load generator: a login, headers.
    """
    found: dict[str, Any] = {}
    seconds_max = 0.0
    generator = _Generator(address, queues, more)
    try:
        began = time.time()
        broker = start(command, log)
        try:
            found["empty_s"] = _until_accepting(broker, address) - began
            _live(broker, generator, live_seconds, found)
            if fill_seconds_max is not None:
                count = max(queues, min(count, int(found["live_rate"] * fill_seconds_max)))
                seconds_max = _PEER_PATIENCE * fill_seconds_max
            seconds_max = max(seconds_max, count / _RATE_MIN + 60)
            _fill(broker, generator, count, seconds_max, found)
            if starts:
                broker.kill()
            else:
                _drain(broker, generator, count, seconds_max, time.time(), found)
        finally:
            broker.stop()
        accepts: list[float] = []
        found["accepts_s"] = accepts
        while len(accepts) < starts:
            began = time.time()
            broker = start(command, log.with_name(log.name + ".restart"))
            try:
                accepts.append(_until_accepting(broker, address) - began)
                if len(accepts) < starts:
                    broker.kill()
                else:
                    _drain(broker, generator, count, seconds_max, began, found)
            finally:
                broker.stop()
    except (BrokerStartError, RuntimeError, subprocess.TimeoutExpired) as error:
        found["error"] = str(error)
    return BacklogRun(name, count, queues, **found)


@dataclass(frozen=True, slots=True)
class _Generator:
    """The load generator, as all loads of one measurement run it. Attributes: see :func:`measure`."""

    address: Address
    queues: int
    more: Sequence[str]

    def load(self, name: str, count: int, seconds: float, *arguments: str) -> dict[str, Any]:
        """Publish *count* messages to so many queues *name*, with confirmations.

        Raises: RuntimeError when it found anything but what was to be expected.
        """
        names = ",".join(f"/queue/{name}.{number}" for number in range(self.queues))
        options = [
            f"-addr={self.address}",
            f"-size={_SIZE_BYTES}",
            "-send-header=persistent:true",
            f"-messages={count}",
            f"-producers={self.queues}",
            # As many unconfirmed messages in all, however many producers there are.
            f"-window={max(4, 1024 // self.queues)}",
            f"-destination={names}",
            *self.more,
            *arguments,
        ]
        return good_report_of(options, seconds)

    @property
    def consumers(self) -> tuple[str, str]:
        """One for each queue."""
        # What is in flight is the consumers' wish: the same in all, however many there are.
        prefetch = f"-subscribe-header=prefetch-count:{max(100, 1000 // self.queues)}"
        return f"-consumers={self.queues}", prefetch


def _live(
    broker: BrokerProcess, generator: _Generator, live_seconds: float, found: dict[str, Any]
) -> None:
    """As the backlog is published, but with consumers: what differs is that nothing stays."""
    cpu = found["cpu"] = dict[str, float]()

    def load(seconds: float) -> dict[str, Any]:
        limit, duration = 2 * live_seconds + 60, f"-duration={seconds:g}s"
        return generator.load("live", _LIVE_MESSAGES_MAX, limit, *generator.consumers, duration)

    load(2 * live_seconds)
    before = broker.cpu_seconds()
    report = load(live_seconds)
    cpu["live"] = broker.cpu_seconds() - before
    found["live_rate"] = float(report["deliveries_per_s"])
    found["live_count"] = int(report["messages"])


def _fill(
    broker: BrokerProcess,
    generator: _Generator,
    count: int,
    seconds_max: float,
    found: dict[str, Any],
) -> None:
    cpu = found["cpu"]
    before = broker.cpu_seconds()
    report = generator.load("backlog", count, seconds_max, _RUN_ID, "-consumers=0")
    cpu["publish"] = broker.cpu_seconds() - before
    found["publish_rate"] = float(report["messages_per_s"])
    memory = broker.memory()
    found["published_now"], found["published_peak"] = memory.now, memory.peak


def _drain(
    broker: BrokerProcess,
    generator: _Generator,
    count: int,
    seconds_max: float,
    began: float,
    found: dict[str, Any],
) -> None:
    started = found["cpu"]["start"] = broker.cpu_seconds()
    more = (_RUN_ID, *generator.consumers, "-drain")
    report = generator.load("backlog", count, seconds_max, *more)
    found["first_s"] = float(report["first_at"]) - began
    found["drain_rate"] = float(report["messages_per_s"])
    found["faults"] = sum(
        int(report[key])
        for key in ("lost", "duplicates", "out_of_order", "corrupt", "misrouted", "foreign")
    )
    found["cpu"]["drain"] = broker.cpu_seconds() - started
    found["drained_peak"] = broker.memory().peak


def _until_accepting(broker: BrokerProcess, address: Address) -> float:
    """Wait until the address takes a connection, and tell the time (of the clock on the wall).

    Raises: BrokerStartError after 90 s.
    """
    deadline = time.monotonic() + _START_SECONDS_MAX
    while not accepts(address):
        if time.monotonic() > deadline:
            raise BrokerStartError(f"{address} is not open: {broker.tail()}")
        time.sleep(_POLL_SECONDS)
    return time.time()
