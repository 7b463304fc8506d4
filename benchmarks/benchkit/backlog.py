"""Millions of pending messages: memory, the start after a SIGKILL, and how fast they drain.

One measurement: a live load (one producer, one consumer), then a backlog without consumers, SIGKILL
as soon as its last message is confirmed, new starts that are killed as soon as they accept, and one
more, with one consumer a queue until it is empty.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchkit.brokers import Address
from benchkit.process import BrokerProcess, BrokerStartError, accepts, start

#: The goals for 5 million messages of 256 bytes.
MEMORY_BYTES_MAX: Final = 300_000_000
ACCEPT_SECONDS_MAX: Final = 1.0
FIRST_SECONDS_MAX: Final = 4.0
DRAIN_SHARE_MIN: Final = 0.7

_LIVE_SECONDS: Final = 5.0
_LIVE_MESSAGES_MAX: Final = 2_000_000
#: A backlog is published and drained at no less than this, or the run fails.
_RATE_MIN: Final = 2000
_SIZE_BYTES: Final = 256
_START_SECONDS_MAX: Final = 90.0
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class BacklogRun:
    """One measurement. Times are seconds, memory is bytes.

    Attributes:
        count, queues: messages, and over how many queues they are spread.
        live_rate: deliveries a second of the live load, before the backlog.
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
    def drain_share(self) -> float:
        """Draining beside the live load."""
        return self.drain_rate / self.live_rate if self.live_rate else 0.0

    def line(self) -> str:
        """One line for people."""
        name = f"{self.broker} {self.count:,} pending in {self.queues:,} queues"
        if self.error:
            return f"{name}: failed: {self.error}"
        return (
            f"{name}: published at {self.publish_rate:,.0f}/s; memory {_mb(self.published_now)} "
            f"then, at most {_mb(self.published_peak)}, and {_mb(self.drained_peak)} after the "
            f"start; SIGKILL, accepts after {self.accept_s:.2f} s (the best of "
            f"{' '.join(f'{took:.2f}' for took in self.accepts_s)}; {self.cpu['start']:.1f} s CPU; an empty "
            f"one {self.empty_s:.2f} s), first message after {self.first_s:.2f} s; drained at {self.drain_rate:,.0f}/s, "
            f"{self.drain_share:.2f} of the live {self.live_rate:,.0f}/s; {self.faults} faults"
        )

    def goals(self) -> list[tuple[bool, str]]:
        """What was asked for, and whether it was reached; nothing for a run that failed."""
        if self.error:
            return []
        return [
            (self.memory_peak < MEMORY_BYTES_MAX, f"memory {_mb(self.memory_peak)} < 300 MB"),
            (self.accept_s <= ACCEPT_SECONDS_MAX, f"accepts {self.accept_s:.2f} s <= 1 s"),
            (self.first_s <= FIRST_SECONDS_MAX, f"first message {self.first_s:.2f} s <= 4 s"),
            (self.drain_share >= DRAIN_SHARE_MIN, f"drain {self.drain_share:.2f} >= 0.7 of live"),
            (self.faults == 0, f"{self.faults} faults"),
        ]


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def measure(
    name: str,
    command: Sequence[str],
    log: Path,
    loadgen: Path,
    address: Address,
    count: int,
    queues: int,
    *,
    live_seconds: float = _LIVE_SECONDS,
    starts: int = 1,
) -> BacklogRun:
    """Measure one broker that *command* starts on an empty store, and starts again on the same.

    Args:
        queues: producers, queues and consumers, one of each together.
        log: of the first process; ``….restart`` of the last.
        starts: how often the killed one is started; all but the last are killed when they accept.
    """
    found: dict[str, Any] = {}
    try:
        began = time.time()
        broker = start(command, log)
        try:
            found["empty_s"] = _until_accepting(broker, address) - began
            _fill(broker, loadgen, address, count, queues, live_seconds, found)
            broker.kill()
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
                    _drain(broker, loadgen, address, count, queues, began, found)
            finally:
                broker.stop()
    except (BrokerStartError, RuntimeError, subprocess.TimeoutExpired) as error:
        found["error"] = str(error)
    return BacklogRun(name, count, queues, **found)


def _fill(
    broker: BrokerProcess,
    loadgen: Path,
    address: Address,
    count: int,
    queues: int,
    live_seconds: float,
    found: dict[str, Any],
) -> None:
    cpu = found["cpu"] = dict[str, float]()
    live = [f"-messages={_LIVE_MESSAGES_MAX}", "-destination=/queue/live"]
    _generate(loadgen, address, 60.0, *live, f"-duration={live_seconds / 4:g}s")
    before = broker.cpu_seconds()
    report = _generate(loadgen, address, 60.0, *live, f"-duration={live_seconds:g}s")
    cpu["live"] = broker.cpu_seconds() - before
    found["live_rate"] = float(report["deliveries_per_s"])
    before = broker.cpu_seconds()
    seconds = count / _RATE_MIN + 60
    report = _generate(loadgen, address, seconds, *_backlog(count, queues), "-consumers=0")
    cpu["publish"] = broker.cpu_seconds() - before
    found["publish_rate"] = float(report["messages_per_s"])
    memory = broker.memory()
    found["published_now"], found["published_peak"] = memory.now, memory.peak


def _drain(
    broker: BrokerProcess,
    loadgen: Path,
    address: Address,
    count: int,
    queues: int,
    began: float,
    found: dict[str, Any],
) -> None:
    started = found["cpu"]["start"] = broker.cpu_seconds()
    seconds = count / _RATE_MIN + 60
    backlog = [*_backlog(count, queues), f"-consumers={queues}", "-drain"]
    # What is in flight is the consumers' wish: the same in all, however many there are.
    backlog.append(f"-subscribe-header=prefetch-count:{max(100, 1000 // queues)}")
    report = _generate(loadgen, address, seconds, *backlog)
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


def _backlog(count: int, queues: int) -> list[str]:
    """The options that publishing and draining have to share."""
    names = ",".join(f"/queue/backlog.{number}" for number in range(queues))
    return [
        f"-messages={count}",
        f"-producers={queues}",
        # As many unconfirmed messages in all, however many producers there are.
        f"-window={max(4, 1024 // queues)}",
        f"-destination={names}",
        "-run-id=20240229",
    ]


def _generate(loadgen: Path, address: Address, seconds: float, *arguments: str) -> dict[str, Any]:
    """Run the load generator.

    Raises: RuntimeError when it found anything but what was to be expected.
    """
    command = [
        str(loadgen),
        "-json",
        f"-addr={address}",
        f"-size={_SIZE_BYTES}",
        "-send-header=persistent:true",
        f"-timeout={seconds:.0f}s",
        *arguments,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds + 60
    )
    if not done.stdout.startswith("{"):
        raise RuntimeError(done.stderr.strip() or "the generator gave no report")
    report: dict[str, Any] = json.loads(done.stdout)
    if error := report.get("error"):
        raise RuntimeError(str(error))
    return report


def write_json(
    path: Path,
    runs: Sequence[BacklogRun],
    about: object,
    versions: Mapping[str, str],
    command: Sequence[str],
) -> None:
    """Write the result file, with the command that made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "command": list(command),
        "machine": about,
        "versions": dict(versions),
        "pending": [asdict(run) | {"accept_s": run.accept_s, "goals": run.goals()} for run in runs],
    }
    path.write_text(json.dumps(data, indent=2) + "\n")
