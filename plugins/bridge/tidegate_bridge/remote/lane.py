"""One rule in the process: connects, moves messages, and retries for ever, in its own thread.

Everything that concerns a lane reaches it as an event, from any thread, so only one thread changes
its state. Events of an earlier attempt are dropped: the source delivers again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidegate.spi import names
from tidegate_bridge import _protocol as protocol
from tidegate_bridge._names import Names
from tidegate_bridge._options import Direction
from tidegate_bridge.remote.budget import Budget
from tidegate_bridge.remote.hops import Hops, More
from tidegate_bridge.remote.link import Link

_log = logging.getLogger("tidegate.bridge")

#: An attempt that lasts this long counts as a success: the next pause is short.
_LASTED_S: Final = 60.0
#: Events handled before their confirmations are sent.
_TOGETHER: Final = 200
#: How long to wait for the reason when the connection closes while we write.
_SAYS_S: Final = 0.5


class LaneError(Exception):
    """An attempt is over. Attributes: problem, remedy: for operators; refused: the cause, or 0."""

    def __init__(self, problem: str, remedy: str, refused: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.refused = refused


class _EndedError(Exception):
    """The rule has been removed."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The other broker is gone or reported an error. Attributes: key: a message named, or None."""

    epoch: int
    problem: str
    remedy: str
    key: int | None = None


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The other broker has confirmed a message. Attributes: key: as it was sent."""

    epoch: int
    key: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The subscription is confirmed. Attributes: is_certain: False: it may be an older one."""

    epoch: int
    is_certain: bool = True


Event: TypeAlias = (
    protocol.Take | protocol.Done | protocol.Stop | protocol.End | Broken | Confirmed | Subscribed
)


class Lane(ABC):
    """See the module. Args: number: of the rule in *start*."""

    def __init__(self, start: protocol.Start, number: int, link: Link) -> None:
        self.start = start
        self.number = number
        self.rule = start.rules[number]
        self.link = link
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.epoch = 0
        self.is_in = self.rule.direction is Direction.IN
        self.names = Names(
            self.rule.remote,
            self.rule.local,
            is_in=self.is_in,
            is_mqtt=start.scheme.startswith("mqtt"),
        )
        self.hops = Hops(start.here, start.hops_max, is_echoed=self.rule.is_echoed)
        self.budget = Budget(start.window_bytes)
        self.done: list[int] = []
        self.looped = 0
        self.has_moved = False
        # Deadline of its confirmation, monotonic clock; None: not needed, or confirmed.
        self._subscribe_by: float | None = None
        self._is_flowing = False
        self.refusal: LaneError | None = None  # why this attempt sends nothing more

    @property
    def client_id(self) -> str:
        """The connection's client id: its session, or durable subscription, is kept under it."""
        return f"{self.start.client_id}-{self.rule.name}"

    # --- what each protocol does ---------------------------------------------------------------

    @abstractmethod
    def connect(self) -> None:
        """Connect, and :meth:`tell_ready` before any message can come. Raises: LaneError."""

    @abstractmethod
    def consume(self) -> None:
        """Subscribe. The confirmation comes as :class:`Subscribed`. Raises: LaneError."""

    @abstractmethod
    def acknowledge(self, number: int) -> None:
        """Acknowledge a message that was brought. Raises: LaneError."""

    @abstractmethod
    def send(self, take: protocol.Take, more: More) -> None:
        """Send to the other broker. Args: more: the bridge's own headers. Raises: LaneError."""

    @abstractmethod
    def sent(self, key: int) -> int | None:
        """The number sent as *key*; None if no longer known."""

    @property
    @abstractmethod
    def has_unconfirmed(self) -> bool:
        """Whether anything sent is still unconfirmed."""

    @abstractmethod
    def disconnect(self) -> None:
        """End the attempt, whatever state it is in. Idempotent; raises nothing."""

    # --- the loop --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=self.rule.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._run_for_ever()
        except _EndedError:
            self.budget.close()
            self.disconnect()

    def _run_for_ever(self) -> None:
        """Raises: _EndedError."""
        wait_s = self.start.reconnect_min
        while True:
            self.epoch += 1
            self.done, self.looped, self.has_moved = [], 0, False
            self.refusal = None
            self._subscribe_by, self._is_flowing = None, False
            self.budget.open()
            began = time.monotonic()
            problem = remedy = ""
            refused = 0
            try:
                self._attempt()
            except _EndedError:
                raise
            except LaneError as error:
                said = (self._said() if not error.remedy else None) or error
                problem, remedy, refused = said.problem, said.remedy, said.refused
            except Exception as error:
                _log.exception("rule=%s: an error of the bridge's own", self.rule.name)
                problem = f"{type(error).__name__}: {error}"
                remedy = "report it, with the log of the gateway; it is tried again"
            self.budget.close()
            self.disconnect()
            if self.has_moved or time.monotonic() - began > _LASTED_S:
                wait_s = self.start.reconnect_min
            lost = protocol.Lost(self.number, self.epoch, problem, remedy, wait_s, refused)
            self.link.send(lost)
            self._pause(wait_s)
            wait_s = min(2 * wait_s, self.start.reconnect_max)

    def _attempt(self) -> None:
        """Raises: LaneError, always."""
        self.connect()
        if self.is_in:
            self._subscribe_by = time.monotonic() + self.start.connect_timeout
            self.consume()
        while True:
            self._deal_with(self._next())
            for _ in range(_TOGETHER):
                try:
                    event = self.inbox.get_nowait()
                except queue.Empty:
                    break
                self._deal_with(event)
            self.tell_done()
            if self.refusal is not None and not self.has_unconfirmed:
                raise self.refusal

    def _next(self) -> Event:
        """The next event. Raises: LaneError when the other broker does not confirm in time."""
        if self._subscribe_by is None:
            return self.inbox.get()
        try:
            return self.inbox.get(timeout=max(0.0, self._subscribe_by - time.monotonic()))
        except queue.Empty:
            raise LaneError(
                f"the other broker does not confirm that {self.rule.remote!r} is subscribed to",
                "see its log; raise connect_timeout if it is slow",
            ) from None

    def tell_ready(self, server: str) -> None:
        """The attempt starts here: the gateway drops what was brought before.

        Args: server: what the other broker calls itself. Raises: OSError.
        """
        self.link.send(protocol.Ready(self.number, self.epoch, server))

    def tell_done(self) -> None:
        """Report what was confirmed since the last report."""
        if self.done:
            self.has_moved = True
            told = protocol.Done(self.number, self.epoch, self.done, self.looped)
            self.done, self.looped = [], 0
            self.link.send(told)

    def _deal_with(self, event: Event) -> None:
        if isinstance(event, protocol.End):
            raise _EndedError
        if event.epoch != self.epoch:
            return
        if isinstance(event, protocol.Take):
            self._take(event)
        elif isinstance(event, Confirmed):
            number = self.sent(event.key)
            if number is not None:
                self.done.append(number)
        elif isinstance(event, Subscribed):
            self._subscribe_by = None
            if event.is_certain and not self._is_flowing:
                self._is_flowing = True
                self.link.send(protocol.Flows(self.number, self.epoch))
        elif isinstance(event, protocol.Done):
            self.has_moved = True
            for number in event.numbers:
                self.acknowledge(number)
            if event.looped:
                self.link.send(protocol.Done(self.number, self.epoch, [], event.looped))
        else:
            self.tell_done()
            raise self._error(event)

    def _error(self, event: Broken | protocol.Stop) -> LaneError:
        key = event.key if isinstance(event, Broken) else None
        refused = None if key is None else self.sent(key)
        return LaneError(event.problem, event.remedy, refused or 0)

    def _said(self) -> LaneError | None:
        """Why the other broker closed the connection, if it says so."""
        until = time.monotonic() + _SAYS_S
        while (left := until - time.monotonic()) > 0:
            try:
                event = self.inbox.get(timeout=left)
            except queue.Empty:
                return None
            if isinstance(event, protocol.End):
                raise _EndedError
            if isinstance(event, Broken) and event.epoch == self.epoch:
                return self._error(event)
        return None

    def _take(self, take: protocol.Take) -> None:
        """Send it, unless it need not or must not go out. Raises: LaneError."""
        if self.refusal is not None:
            return
        message = take.message
        if self.hops.is_copy_of_ours(message.headers):
            self._drop(take.number)
            return
        more = self.hops.next(message.headers)
        if more is None:
            if names.is_queue(self.rule.local):
                self._refuse(self.too_many_hops(), take.number)
            else:
                self._drop(take.number)
        elif len(message.body) > self.start.message_limit:
            self._refuse(self.too_large(len(message.body)), take.number)
        else:
            self.send(take, more)

    def _refuse(self, error: LaneError, number: int) -> None:
        """End the attempt once what was sent is confirmed, or each attempt would resend it."""
        error.refused = number
        self.refusal = error

    def _drop(self, number: int) -> None:
        """A copy that need not go out."""
        self.done.append(number)
        self.looped += 1

    def too_many_hops(self) -> LaneError:
        """The error for a queue's message, which must not be dropped."""
        return LaneError(
            f"a message has gone through {self.start.hops_max} bridges",
            "bridges send in a circle: end it, or raise hops_max if they do not",
        )

    def too_large(self, size: int) -> LaneError:
        return LaneError(
            f"a message has a body of {size} bytes, and message_limit is {self.start.message_limit}",
            "raise message_limit, or take the message out of the source",
        )

    def _pause(self, seconds: float) -> None:
        """Wait, dropping events: they belong to an attempt that is over."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                event = self.inbox.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(event, protocol.End):
                raise _EndedError
