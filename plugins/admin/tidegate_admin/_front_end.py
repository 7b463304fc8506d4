"""The listener: binds, keeps the admin process alive, and answers what it asks."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec

from tidegate.spi import (
    AccessError,
    Bind,
    GatewayError,
    ListenerConfig,
    StoreUnavailableError,
)
from tidegate.spi.clients.operators import OperatorDesk
from tidegate.spi.machine.children import supervise
from tidegate.spi.operate import ListEvents, Request, ShowStore
from tidegate_admin import _protocol as protocol
from tidegate_admin._callers import Callers, LoginError
from tidegate_admin._options import AdminOptions, check, is_loopback
from tidegate_admin._process import AdminProcess
from tidegate_admin._token import TOKEN_FILE, token_of

_log = logging.getLogger("tidegate.admin")

#: How long to wait for a port in use: the process of a killed gateway lives on for a moment.
_PORT_S: Final = 10.0
_PORT_EVERY_S: Final = 0.1
_BACKLOG: Final = 128

#: A quick request that needs the right ``admin``.
_MAY_ASK: Final = ShowStore()
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Request).decode


@final
class AdminFrontEnd:
    """A :class:`tidegate.spi.FrontEnd` and :class:`tidegate.spi.clients.operators.OperatorFrontEnd`.

    Args: begun: processes ready to serve; it takes one of them, or starts its own.
    """

    def __init__(
        self, config: ListenerConfig, options: AdminOptions, begun: list[AdminProcess]
    ) -> None:
        self._config = config
        self._options = options
        self._begun = begun
        self._desk: OperatorDesk | None = None
        self._callers: Callers | None = None
        self._socket: socket.socket | None = None
        self._process: AdminProcess | None = None
        self._supervising: asyncio.Task[None] | None = None

    async def prepare(self, desk: OperatorDesk) -> None:
        """See OperatorFrontEnd. A port in use may be freed with the store, so a standby waits."""
        self._desk = desk
        token = await asyncio.to_thread(self._token)
        self._callers = Callers(desk, token, "")
        try:
            await self._bind()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _log.info("bind=%s is in use, tried again when the store is open", self._bound)
        else:
            await self._serve()

    async def start(self) -> str:
        """See FrontEnd. Raises: OSError."""
        assert self._desk is not None, "prepare() comes first"
        if self._socket is None:
            deadline = asyncio.get_running_loop().time() + _PORT_S
            while self._socket is None:
                try:
                    await self._bind()
                except OSError as error:
                    late = asyncio.get_running_loop().time() > deadline
                    if error.errno != errno.EADDRINUSE or late:
                        raise
                    await asyncio.sleep(_PORT_EVERY_S)
            await self._serve()
        _log.info("console=%s/ token_file=%s", self.address, self._token_file or "none")
        return self.address

    @property
    def address(self) -> str:
        """The listener's, e.g. ``http://127.0.0.1:8161``; its port is known once it is bound."""
        port = self._config.port if self._socket is None else self._socket.getsockname()[1]
        scheme = "https" if self._config.transport == "tls" else "http"
        return f"{scheme}://{Bind(self._config.host, port)}"

    @property
    def pid(self) -> int:
        """The serving process's; 0 for none."""
        return 0 if self._process is None else self._process.pid

    async def stop_accepting(self) -> None:
        """See FrontEnd. It still reports that the gateway is stopping; the desk refuses requests."""

    async def stop(self) -> None:
        """See FrontEnd."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
            self._supervising = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def reload(self) -> bool:
        """Reread token and certificate: see :class:`tidegate.spi.Reloadable`."""
        await asyncio.to_thread(check, self._config, self._options)
        token = await asyncio.to_thread(self._token)
        if self._callers is not None:
            self._callers.token = token
        if self._process is not None and self._options.tls_certificate is not None:
            self._process.renew()
        return bool(token) or self._options.tls_certificate is not None

    # --- the process -----------------------------------------------------------------------------

    @property
    def _bound(self) -> Bind:
        return Bind(self._config.host, self._config.port)

    @property
    def _token_file(self) -> Path | None:
        """None: only users are let in."""
        if not is_loopback(self._config):
            return None
        assert self._desk is not None
        return self._options.token_file or self._desk.directory / TOKEN_FILE

    def _token(self) -> str:
        """Raises: ConfigError."""
        path = self._token_file
        return "" if path is None else token_of(path)

    async def _bind(self) -> None:
        """Raises: OSError."""
        host, port = self._config.host, self._config.port
        if not host and socket.has_dualstack_ipv6():
            self._socket = socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
            return
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        self._socket = socket.create_server(address, family=family, backlog=_BACKLOG)

    async def _serve(self) -> None:
        assert self._callers is not None
        self._callers.address = self.address
        self._supervising = asyncio.create_task(
            supervise(self._started, self._runs, _tell_end), name="admin"
        )

    async def _started(self) -> AdminProcess:
        assert self._socket is not None
        process = self._begun.pop() if self._begun else await AdminProcess.start()
        try:
            await process.serve(self._start(), self._socket, self._answer)
        except BaseException:
            await process.end()
            raise
        return process

    def _runs(self, process: AdminProcess | None) -> None:
        self._process = process

    def _start(self) -> protocol.Start:
        assert self._desk is not None
        options, public = self._options, self._options.public_health
        names = () if Bind(self._config.host, 0).is_loopback else (self._config.host,)
        return protocol.Start(
            name=self._desk.name,
            version=self._desk.version,
            hosts=(*options.hosts, *names),
            certificate=str(options.tls_certificate or ""),
            key=str(options.tls_key or ""),
            health_is_public=is_loopback(self._config) if public is None else public,
            connections_max=options.connections_max,
            requests_max=options.requests_max,
            event_streams_max=options.event_streams_max,
            request_limit=options.request_limit,
            request_timeout=options.request_timeout,
            metrics_destinations_max=options.metrics_destinations_max,
            metrics_destinations_by=options.metrics_destinations_by,
            metrics_destinations=options.metrics_destinations,
            directory=str(self._desk.directory),
        )

    # --- what it asks ----------------------------------------------------------------------------

    async def _answer(self, ask: protocol.FromServer) -> protocol.FromGateway:
        assert self._desk is not None
        if isinstance(ask, protocol.AskHealth):
            return protocol.Health(ask.id, self._desk.readiness())
        if isinstance(ask, protocol.AskSample):
            return protocol.Sample(ask.id, self._desk.overview())
        try:
            return protocol.Answer(ask.id, msgspec.Raw(await self._body(ask)))
        except LoginError as error:
            return protocol.Answer(ask.id, kind=protocol.LOGIN, problem=error.problem)
        except msgspec.DecodeError as error:
            return protocol.Answer(ask.id, kind="RequestError", problem=str(error))
        except GatewayError as error:
            return protocol.Answer(ask.id, kind=_kind_of(error), problem=str(error))

    async def _body(self, ask: protocol.Ask) -> bytes:
        assert self._callers is not None
        assert self._desk is not None
        who = await self._callers.identity(ask.peer, ask.credentials)
        if bytes(ask.request) == b"null":
            with suppress(StoreUnavailableError):  # during recovery only the token is known
                await self._desk.perform(who, _MAY_ASK)
            return b"null"
        request = _decode(ask.request)
        answer = await self._desk.perform(who, request)
        if isinstance(request, ListEvents) and request.wait_s:
            # A caller whose credentials are no longer valid learns nothing of later events.
            await self._callers.identity(ask.peer, ask.credentials)
        return _encode(answer)


def _tell_end(why: str, again_s: float) -> None:
    _log.error("admin process %s; started again in %.1f s", why, again_s)


def _kind_of(error: GatewayError) -> str:
    return "AccessError" if isinstance(error, AccessError) else type(error).__name__
