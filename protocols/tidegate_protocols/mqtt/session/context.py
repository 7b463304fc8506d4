"""What an MQTT session needs of the outside world: time, tasks, and what its listener shares."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.spi import Broker
from tidegate_protocols._pace import Timer
from tidegate_protocols.mqtt._options import MqttOptions
from tidegate_protocols.mqtt.messages.fan_out import FanOut


class Runtime(Protocol):
    """The clock and the tasks; the front-end passes in those of the event loop."""

    def time(self) -> float:
        """Monotonic seconds."""
        ...

    def now_us(self) -> int:
        """Microseconds since the Unix epoch."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...

    def spawn(self, coroutine: Coroutine[None, None, None]) -> Timer:
        """Run *coroutine* as a task that the front-end owns."""
        ...


@dataclass(slots=True)
class SessionContext:
    """What all sessions of a listener share.

    Attributes: listener: its address, set once it is bound; fan_out, fan_out_v5: before MQTT 5.0, and
    from it on.
    """

    broker: Broker
    options: MqttOptions
    runtime: Runtime
    allow_anonymous: bool
    listener: str = ""
    fan_out: FanOut = field(default_factory=FanOut)
    fan_out_v5: FanOut = field(default_factory=FanOut)
