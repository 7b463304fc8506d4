"""Answers the Flight server: who may read what, rows, and readers' positions.

Everything here runs on the gateway's loop, a page of rows at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from tidegate.spi import (
    AccessError,
    AcknowledgedReader,
    BrokerConnection,
    CorruptRecordError,
    FlowControlError,
    GatewayError,
    RequestError,
    StoreError,
)
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight._positions import Position, Positions
from tidegate_sink_flight._sessions import Sessions
from tidegate_sink_spark.staging.dead import DeadLetter
from tidegate_sink_spark.staging.reading import PatientReader, decoded
from tidegate_sink_spark.staging.selection import Selection

_log = logging.getLogger("tidegate.sink.flight")

#: Most rows per answer, and bytes of their bodies (or one row): about 1 ms of encoding on the loop.
PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 1 << 20
_ENDED: Final = protocol.Refusal("unauthenticated", "the session has ended; log in again")


class Desk:
    """Args: owners: of the readers; released: called when a reader has committed more."""

    def __init__(
        self,
        reader: AcknowledgedReader,
        positions: Positions,
        sessions: Sessions,
        selection: Selection,
        owners: dict[str, str],
        released: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._positions = positions
        self._sessions = sessions
        self._selection = selection
        self._owners = owners
        self._released = released
        self._saving = asyncio.Lock()

    async def answer(self, call: protocol.Call) -> protocol.Answer:
        """Answer a call. Raises nothing but CancelledError."""
        try:
            body = await self._answer(call.question)
        except AccessError as error:
            kind = "unauthenticated" if isinstance(call.question, protocol.Login) else "denied"
            body = self._refused(call.question, kind, error)
        except (FlowControlError, StoreError) as error:
            body = protocol.Refusal("busy", error.for_client)
        except RequestError as error:
            body = self._refused(call.question, "invalid", error)
        except GatewayError as error:
            body = protocol.Refusal("busy", error.for_client)
        except Exception:
            _log.exception("a reader's %s failed", type(call.question).__name__)
            body = protocol.Refusal("internal", "internal error of the gateway; its log says more")
        return protocol.Answer(call.id, body)

    async def _answer(
        self, question: protocol.Question
    ) -> protocol.Session | protocol.View | protocol.Rows | protocol.Refusal:
        if isinstance(question, protocol.Ready):
            raise AssertionError("it is not answered")
        if isinstance(question, protocol.Login):
            token, principal = await self._sessions.log_in(
                question.peer, question.username, question.password
            )
            return protocol.Session(token, principal)
        if isinstance(question, protocol.Leave):
            self._sessions.leave(question.session)
            return protocol.View()
        connection = self._sessions.of(question.session)
        if connection is None:
            return _ENDED
        match question:
            case protocol.Look():
                name = question.reader
                position = self._position(connection, name) if name else None
                return self._view(position, await self._last())
            case protocol.Open():
                self._position(connection, question.reader)
                return self._view(await self._saved(self._positions.opened, question.reader))
            case protocol.Plan():
                self._position(connection, question.reader)
                return self._view(
                    await self._saved(
                        self._positions.planned,
                        question.reader,
                        question.generation,
                        question.rows_max,
                        await self._last(),
                    )
                )
            case protocol.Commit():
                return await self._commit(connection, question)
            case protocol.Find():
                last = await self._last()
                return protocol.View(
                    self._reader.store_id, await self._found(question.at, last), last
                )
            case protocol.Page():
                return await self._page(connection, question)
            case _:
                assert_never(question)

    def _refused(
        self, question: protocol.Question, kind: str, error: GatewayError
    ) -> protocol.Refusal:
        """Why there is no answer. A session ended by the gateway takes precedence."""
        is_of_session = not isinstance(question, protocol.Ready | protocol.Login)
        if is_of_session and self._sessions.of(question.session) is None:
            return _ENDED
        return protocol.Refusal(kind, error.for_client)

    def _position(self, connection: BrokerConnection, name: str) -> Position:
        """Raises: AccessError, the same for another's reader and for an unknown one."""
        if self._owners.get(name) != connection.principal:
            raise AccessError(
                f"no reader {name!r} belongs to you; the sink's `readers` name them and whose they are",
                principal=connection.principal,
            )
        return self._positions.of(name)

    async def _last(self) -> int:
        """The last durable, and so readable, row."""
        reader = self._reader
        first, last = reader.first, reader.last
        if first > last:
            return last
        try:
            return (await reader.read_encoded(last - 1, 1, 1)).last
        except (RequestError, CorruptRecordError):
            return last  # released, or damaged: in both cases it was durable

    def _view(self, position: Position | None, last: int | None = None) -> protocol.View:
        reader = self._reader
        last = reader.last if last is None else last
        if position is None:
            return protocol.View(reader.store_id, reader.first, last)
        return protocol.View(
            reader.store_id,
            reader.first,
            last,
            position.committed,
            position.planned,
            position.generation,
        )

    async def _saved(self, change: Callable[..., Position], *arguments: object) -> Position:
        """Save a change: one at a time, in a thread. Raises: RequestError, FlowControlError."""
        async with self._saving:
            try:
                return await asyncio.to_thread(change, *arguments)
            except OSError as error:
                _log.error("the position of a reader cannot be saved: %s", error)
                raise FlowControlError("the position cannot be saved now; try again") from error

    async def _commit(
        self, connection: BrokerConnection, question: protocol.Commit
    ) -> protocol.View:
        self._position(connection, question.reader)
        self._check_epoch(question.epoch)
        position = await self._saved(
            self._positions.committed,
            question.reader,
            question.generation,
            question.ack_seq,
            self._reader.last,
        )
        await self._released()
        return self._view(position)

    def _check_epoch(self, epoch: str) -> None:
        if epoch != self._reader.store_id:
            raise RequestError(
                f"these offsets are of another store (epoch {epoch}, this one has {self._reader.store_id}): "
                "its numbers say nothing here; begin with a new checkpoint"
            )

    async def _page(self, connection: BrokerConnection, question: protocol.Page) -> protocol.Rows:
        self._check_epoch(question.epoch)
        after, through = question.after, question.through
        first, last = self._reader.first, self._reader.last
        if through > last:
            raise RequestError(f"row {through} is not there yet: the log ends with {last}")
        if after + 1 < first:
            if not question.skip:
                raise RequestError(
                    f"rows {after + 1} to {min(first - 1, through)} are not in the log any more: it has "
                    + (f"{first} to {last}" if first <= last else f"none before {last + 1}")
                )
            after = min(first - 1, through)
        if after >= through:
            return protocol.Rows([], through)
        patient = PatientReader(
            self._reader, _log.warning, asyncio.sleep, stops=False, page_bytes=PAGE_BYTES
        )
        found = await patient.read(after, min(PAGE_ROWS, through - after))
        if found is None:
            raise FlowControlError("the gateway is shutting down")
        if isinstance(found, DeadLetter):
            return _damaged(found)
        if isinstance(found, int):  # released meanwhile
            return await self._page(connection, question)
        if not found:
            raise FlowControlError("the rows are not durable yet; try again")
        page, last = decoded(found), found[-1].last
        if page.letters:  # such a row has a page to itself
            if page.letters[0].ack_sequence == after + 1:
                return _damaged(page.letters[0])
            last = page.letters[0].ack_sequence - 1
        rows = [
            row
            for row in self._selection.of(list(page.rows))
            if row.ack_sequence <= last and connection.may_take(row.message.destination)
        ]
        return protocol.Rows(rows, last)

    async def _found(self, at: int, last: int) -> int:
        """The first row acknowledged at *at* or later. Times rise with the rows, unless the clock
        was set. Raises: StoreError."""
        low, high = self._reader.first, last + 1
        while low < high:
            middle = (low + high) // 2
            try:
                page = await self._reader.read(middle - 1, 1, 1)
            except RequestError:
                low = middle + 1  # released meanwhile
                continue
            if page.rows and page.rows[0].acked_at < at:
                low = middle + 1
            else:
                high = middle
        return low


def _damaged(letter: DeadLetter) -> protocol.Rows:
    _log.error("row %d of the acknowledged log is damaged: %s", letter.ack_sequence, letter.reason)
    return protocol.Rows([], letter.ack_sequence, [letter.ack_sequence])
