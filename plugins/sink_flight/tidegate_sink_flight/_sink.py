"""The sink: keeps rows until its readers have committed them, and serves clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Final, final

from tidegate.spi import (
    AcknowledgedReader,
    Broker,
    GatewayError,
    SinkContext,
    SinkHealth,
    SinkProblem,
    SinkState,
)
from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight._desk import Desk
from tidegate_sink_flight._keeping import Keeping
from tidegate_sink_flight._options import FlightSinkOptions, Listening
from tidegate_sink_flight._positions import Positions
from tidegate_sink_flight._process import ServerProcess, ServerStartError
from tidegate_sink_flight._sessions import Sessions
from tidegate_sink_spark.staging.selection import Selection

_log = logging.getLogger("tidegate.sink.flight")

#: How often idle sessions are ended, and rows kept for long enough released.
UPKEEP_INTERVAL_S: Final = 1.0
#: Most errors that `tidegate sink errors` shows.
PROBLEMS_KEPT: Final = 20
RESTART_DELAY_MIN_S: Final = 1.0
RESTART_DELAY_MAX_S: Final = 60.0


@final
class FlightSink:
    """Implements :class:`tidegate.spi.Sink` and :class:`tidegate.spi.ServingSink`."""

    def __init__(
        self, context: SinkContext, options: FlightSinkOptions, listening: Listening
    ) -> None:
        self._context = context
        self._options = options
        self._listening = listening
        self._selection = Selection(options.include, options.exclude)
        self._reader: AcknowledgedReader | None = None
        self._positions: Positions | None = None
        self._sessions: Sessions | None = None
        self._server: ServerProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._keeping = Keeping(options.keep)
        self._problem = ""
        self._problems: deque[SinkProblem] = deque(maxlen=PROBLEMS_KEPT)
        self._address = ""
        self._is_stopping = False

    async def start(self, reader: AcknowledgedReader) -> None:
        positions = Positions(self._context.data_directory, reader.store_id)
        told = await asyncio.to_thread(
            positions.load, list(self._options.readers), reader.first, reader.last
        )
        for line in told:
            _log.warning("sink=%s %s", self._context.name, line)
        self._reader, self._positions = reader, positions
        self._look_at_time()
        await self._release()
        self._tasks.append(asyncio.create_task(self._upkeep()))

    async def stop(self) -> None:
        await self.stop_serving()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def health(self) -> SinkHealth:
        reader = self._reader
        if reader is None or self._is_stopping:
            return SinkHealth(SinkState.STOPPED, mark=0, staged=0)
        # Nothing is staged: rows that readers have not committed are still in the log.
        return SinkHealth(
            SinkState.FAILING if self._problem else SinkState.RUNNING,
            mark=reader.released,
            staged=reader.released,
            problem=self._problem,
            target=self._address,
            problems=tuple(self._problems),
        )

    # --- clients ---------------------------------------------------------------------------

    async def serve(self, broker: Broker) -> str:
        reader, positions = self._reader, self._positions
        assert reader is not None and positions is not None, "the sink is started"  # noqa: PT018
        try:
            server = await ServerProcess.start(
                self._configuration(broker, self._listening.bind.port)
            )
        except ServerStartError as error:
            raise OSError(str(error)) from error
        scheme = "grpc+tls" if self._listening.certificate else "grpc"
        host = str(self._listening.bind).rpartition(":")[0]
        address = self._address = f"{scheme}://{host}:{server.port}"
        self._sessions = Sessions(
            broker,
            address,
            anonymous=self._listening.anonymous,
            timeout_s=self._options.session_timeout,
        )
        desk = Desk(
            reader,
            positions,
            self._sessions,
            self._selection,
            self._options.readers,
            self._release,
        )
        self._server = server
        server.answer(desk.answer)
        self._tasks.append(asyncio.create_task(self._watch(broker, server.port, desk)))
        return address

    async def stop_serving(self) -> None:
        self._is_stopping = True
        server, self._server = self._server, None
        if server is not None:
            await server.end()
        if self._sessions is not None:
            self._sessions.end()

    def _configuration(self, broker: Broker, port: int) -> protocol.Start:
        return protocol.Start(
            host=self._listening.bind.host,
            port=port,
            certificate=self._listening.certificate,
            key=self._listening.key,
            gateway_name=self._context.gateway_name,
            streams_max=self._options.streams_max,
            streams_per_client_max=self._options.streams_per_client_max,
            version=broker.version,
        )

    async def _watch(self, broker: Broker, port: int, desk: Desk) -> None:
        """Restart the server on the same port whenever it dies."""
        delay = RESTART_DELAY_MIN_S
        while (server := self._server) is not None:
            code = await server.wait()
            if self._is_stopping:
                return
            if self._sessions is not None:
                self._sessions.end()
            await server.end()
            self._failed(f"the Flight server died (exit code {code}), and is started again")
            while not self._is_stopping and self._server is server:
                await asyncio.sleep(delay)
                delay = min(delay * 2, RESTART_DELAY_MAX_S)
                try:
                    started = await ServerProcess.start(self._configuration(broker, port))
                except (GatewayError, OSError) as error:
                    self._failed(f"the Flight server does not start: {error}")
                    continue
                if self._is_stopping:
                    await started.end()
                    return
                self._server = started
                started.answer(desk.answer)
                self._problem = ""
                delay = RESTART_DELAY_MIN_S

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._problems.appendleft(SinkProblem(time.time_ns() // 1_000, problem))
        _log.error("sink=%s %s", self._context.name, problem)

    # --- rows ------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            if self._sessions is not None:
                self._sessions.sweep()
            self._look_at_time()
            with contextlib.suppress(GatewayError):  # the store reports it, and this tries again
                await self._release()

    def _look_at_time(self) -> None:
        reader = self._reader
        assert reader is not None, "the sink is started"
        self._keeping.look(asyncio.get_running_loop().time(), reader.last)

    async def _release(self) -> None:
        """Release rows that every reader has committed and that were kept for long enough."""
        reader, positions = self._reader, self._positions
        assert reader is not None and positions is not None, "the sink is started"  # noqa: PT018
        common = positions.common
        through = reader.last if common is None else common
        now = asyncio.get_running_loop().time()
        through = min(through, self._keeping.through(now, reader.last))
        if through > reader.released:
            await reader.release(through)
