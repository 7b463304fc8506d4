"""A replay from a table to a running gateway: the API behind ``tidegate replay``.

The gateway remembers the progress, in the batch of the messages (docs/decisions/0017-replay.md). So after a kill,
the same id continues from there; the plan, up to which row of which log, is fixed at the beginning.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tidegate.spi import AccessError, RequestError
from tidegate.spi.commands import ClientError, OperatorConnection
from tidegate.spi.replay import (
    ASKED_MAX,
    AskDestinations,
    BeginReplay,
    PublishReplayed,
    Replay,
    ReplayedMessage,
    Verdicts,
)
from tidegate_sink_spark.replay.messages import Maker
from tidegate_sink_spark.replay.selecting import Log, Plan, Reader

#: Messages and body bytes of one request.
BATCH_COUNT: Final = 500
BATCH_BYTES: Final = 1 << 20
#: How long the thread that makes messages keeps the interpreter while the one that sends requests has an answer. With
#: Python's own 5 ms each answer waited that long: 32 thousand messages/s instead of 41.
_SWITCH_S: Final = 0.0003
#: Errors that pass: the request is repeated after a pause, which grows.
_PASSES: Final = frozenset(
    ("FlowControlError", "StoreFullError", "StoreUnavailableError", "DisconnectError")
)
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
#: With a rate: messages are sent in portions of this much time.
_PORTION_S: Final = 0.1

#: Problems that an error lists.
_NAMED_MAX: Final = 5


class _Kept(msgspec.Struct, frozen=True):
    """The plan as the gateway keeps it. Attributes: of: what it is a replay of."""

    of: str
    rows: int
    logs: tuple[Log, ...]
    has_repeats: bool
    largest: int


@dataclass(slots=True)
class Told:
    """Progress, for a progress bar.

    Attributes: done, total: messages; waiting: why the gateway takes none now; "": it does.
    """

    done: int
    total: int
    waiting: str = ""


def _nothing(told: Told) -> None:
    del told


@dataclass(slots=True)
class Replayer:
    """Replays what *reader* selects.

    Args:
        of: says what is replayed, and where to; another text with the same id is an error.
        rate: most messages a second; 0: no limit.
        tell: called from time to time.
    """

    gateway: OperatorConnection
    reader: Reader
    maker: Maker
    of: str
    rate: float = 0
    tell: Callable[[Told], None] = _nothing
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    batch_count: int = BATCH_COUNT
    _position: str = ""
    _done: int = 0
    _total: int = 0
    _due: float = field(default=0.0)

    # --- before ----------------------------------------------------------------------------------

    def refusals(self, plan: Plan) -> dict[str, str]:
        """Why destinations would take nothing, by destination; {}: all of them accept.

        Raises: AccessError, ClientError.
        """
        to = self.maker.destination
        wanted = [to] if to and plan.destinations else list(plan.destinations)
        problems: dict[str, str] = {}
        for first in range(0, len(wanted), ASKED_MAX):
            part = tuple(wanted[first : first + ASKED_MAX])
            answer = self.gateway.answer(AskDestinations(part))
            if not isinstance(answer, Verdicts):
                raise _other_version()
            problems |= answer.problems
        return problems

    # --- all of it -------------------------------------------------------------------------------

    def run(self) -> Replay:
        """Publish what is not published yet. Returns: its state at the end; still new when no row is selected.

        Raises: RequestError, AccessError: it makes no sense, or is not allowed; ClientError: the gateway went away, or
            the table cannot be read. The same call continues after any of them.
        """
        known = self._ask(BeginReplay(self.maker.replay))
        if known.is_new:
            plan = self.reader.plan()
            if not plan.rows:
                return known  # not begun: a later call takes what is selected then
            known = self._begin(plan)
        kept = msgspec.json.decode(known.plan, type=_Kept)
        if kept.of != self.of:
            raise RequestError(
                f"the replay {self.maker.replay!r} is of something else ({kept.of}); go on with its own"
                " arguments, or give this one another id"
            )
        self._position, self._done, self._total = known.position, known.count, kept.rows
        self._report()
        if known.is_complete:
            return known
        if kept.has_repeats and not known.is_new:
            self.reader.find_repeats()
        return self._publish_all(kept)

    def _begin(self, plan: Plan) -> Replay:
        problems = self.refusals(plan)
        if problems:
            named = "; ".join(list(problems.values())[:_NAMED_MAX])
            raise AccessError(
                f"{len(problems)} of {len(plan.destinations)} destinations take no messages, so nothing was"
                f" published: {named}"
            )
        kept = _Kept(self.of, plan.rows, plan.logs, bool(plan.repeated), plan.largest)
        text = msgspec.json.encode(kept).decode()
        return self._ask(BeginReplay(self.maker.replay, text, "0:0"))

    def _publish_all(self, kept: _Kept) -> Replay:
        with _quick_switches(), ThreadPoolExecutor(1, "replay") as thread:
            batches = self._batches(kept)
            coming = thread.submit(next, batches, None)  # read while the gateway works
            while (batch := coming.result()) is not None:
                coming = thread.submit(next, batches, None)
                self._publish(batch)
        last = PublishReplayed(self.maker.replay, self._position, through="end", is_last=True)
        while (answer := self._ask(last)).problem:
            self._pause(answer, _PAUSE_MAX_S)
        self._report()
        return answer

    def _batches(self, kept: _Kept) -> Iterator[list[ReplayedMessage]]:
        log, _, after = self._position.partition(":")
        for window in self.reader.windows(kept.logs, int(log), int(after), kept.largest):
            rows = window.rows
            for first in range(0, rows.num_rows, self.batch_count):
                part = rows.slice(first, self.batch_count)
                made = self.maker.make(window.log, part, time.time_ns() // 1000)
                yield from _bounded(made)

    def _publish(self, batch: list[ReplayedMessage]) -> None:
        """Publish all of it, repeating the request as often as needed."""
        pause = _PAUSE_MIN_S
        while batch:
            portion = batch[: self._portion()]
            answer = self._ask(PublishReplayed(self.maker.replay, self._position, tuple(portion)))
            count = _published(portion, self._position, answer)
            self._position, self._done = answer.position, answer.count
            batch = batch[count:]
            self._due += count / self.rate if self.rate else 0
            self._report(answer.problem)
            if answer.problem:
                pause = _PAUSE_MIN_S if count else min(2 * pause, _PAUSE_MAX_S)
                self._pause(answer, pause)
            else:
                pause = _PAUSE_MIN_S

    def _portion(self) -> int:
        """How many messages may be sent now; waits until it is at least one."""
        if not self.rate:
            return self.batch_count
        now = self.now()
        self._due = max(self._due, now - _PORTION_S)  # missed time is not made up for
        if self._due > now:
            self.sleep(self._due - now)
        return max(1, int(self.rate * _PORTION_S))

    def _pause(self, answer: Replay, pause: float) -> None:
        """Raises: ClientError for errors that do not pass."""
        if answer.kind == "AccessError":
            raise AccessError(f"stopped after {answer.count} messages: {answer.problem}")
        if answer.kind not in _PASSES:
            raise ClientError(f"stopped after {answer.count} messages: {answer.problem}")
        self.sleep(pause)

    def _ask(self, request: BeginReplay | PublishReplayed) -> Replay:
        answer = self.gateway.answer(request)
        if not isinstance(answer, Replay):
            raise _other_version()
        return answer

    def _report(self, waiting: str = "") -> None:
        self.tell(Told(self._done, self._total, waiting))


@contextmanager
def _quick_switches() -> Generator[None]:
    """Makes the threads of this process switch more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _bounded(made: list[ReplayedMessage]) -> Iterator[list[ReplayedMessage]]:
    """Split by bytes, at least one message each."""
    first = size = 0
    for index, item in enumerate(made):
        size += len(item.body)
        if size > BATCH_BYTES and index > first:
            yield made[first:index]
            first, size = index, len(item.body)
    if made:
        yield made[first:]


def _published(sent: Sequence[ReplayedMessage], before: str, answer: Replay) -> int:
    """How many of *sent* the gateway has published. Raises: ClientError."""
    if answer.position == before:
        return 0
    for count, item in enumerate(sent, 1):
        if item.position == answer.position:
            return count
    raise ClientError(
        f"another command goes on with the replay {answer.replay!r}; this one is not needed any more"
    )


def _other_version() -> ClientError:
    return ClientError("the gateway is of another version: it answered something else")
