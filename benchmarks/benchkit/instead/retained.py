"""How long a new subscriber takes to have all retained messages that its wildcard filter matches."""

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchkit.brokers import Address
from benchkit.generator import report_of
from benchkit.instead.idle import resident_bytes
from benchkit.process import BrokerProcess

_SECONDS_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class RetainedRun:
    """One measurement. Times are seconds.

    Attributes:
        protocol: mqtt (3.1.1) or mqtt5. count: retained messages, each of a topic of its own.
        publish_s: from the first publish to the last confirmation.
        first_s, all_s: of each subscription, one after the other, from before its SUBSCRIBE to the
            first and to the last retained message.
        bytes_each: growth of the broker's resident memory by publishing, divided by the messages.
    """

    broker: str
    protocol: str
    count: int
    publish_s: float = 0.0
    first_s: tuple[float, ...] = ()
    all_s: tuple[float, ...] = ()
    bytes_each: float = 0.0
    generator_cpu_s: float = 0.0
    error: str = ""

    @property
    def reached(self) -> bool:
        """There is no goal."""
        return not self.error

    def line(self) -> str:
        """One line for people."""
        name = f"{self.broker} {self.protocol} retained"
        if self.error:
            return f"{name}: failed: {self.error}"
        median = statistics.median(self.all_s)
        return (
            f"{name}: {self.count:,} published at {self.count / self.publish_s:,.0f}/s; a wildcard "
            f"subscription has the first after {statistics.median(self.first_s) * 1000:,.1f} ms and "
            f"all after {median:.3f} s ({min(self.all_s):.3f}..{max(self.all_s):.3f}), "
            f"{self.count / median:,.0f}/s; {self.bytes_each / 1024:,.2f} KiB resident memory each"
        )


def measure(
    name: str,
    broker: BrokerProcess,
    address: Address,
    protocol: str,
    count: int,
    *,
    login: Sequence[str] = (),
    subscribes: int = 3,
) -> RetainedRun:
    """Publish *count* retained messages of 256 bytes, and subscribe to all of them *subscribes* times.

    Args: protocol: as the load generator calls it: mqtt (3.1.1) or mqtt5.
    """
    options = [
        f"-protocol={protocol}",
        f"-addr={address}",
        f"-retained={count}",
        f"-subscribes={subscribes}",
        "-qos=1",
        *login,
    ]
    before = resident_bytes(broker.pids())
    try:
        found = report_of(options, _SECONDS_MAX)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return RetainedRun(name, protocol, count, error=str(error))
    after = resident_bytes(broker.pids())
    return run_from_report(name, protocol, count, found, after - before)


def run_from_report(
    name: str, protocol: str, count: int, found: Mapping[str, Any], grown_bytes: int
) -> RetainedRun:
    """Make a run of the load generator's JSON report."""
    if error := found.get("error"):
        return RetainedRun(name, protocol, count, error=str(error))
    return RetainedRun(
        name,
        protocol,
        count,
        publish_s=float(found["publish_seconds"]),
        first_s=tuple(found["first_seconds"]),
        all_s=tuple(found["subscribe_seconds"]),
        bytes_each=grown_bytes / count,
        generator_cpu_s=float(found["generator_cpu_s"]),
    )
