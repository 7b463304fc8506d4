"""The Flight server: the methods that clients call. docs/flight.md has the protocol.

PyArrow has no type stubs, hence the ``Any`` at its border. It sends the traceback of any exception
that is not Flight's own to the client, so none of those may leave a method.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate_sink_flight import _protocol as protocol
from tidegate_sink_flight.server import requests
from tidegate_sink_flight.server.batches import Batches
from tidegate_sink_flight.server.callers import CredentialsError, Entry, Tokens, basic, peer_of
from tidegate_sink_flight.server.link import Link

fl: Final[Any] = importlib.import_module("pyarrow.flight")

_log = logging.getLogger("tidegate.sink.flight.server")

#: Calls at a time, besides streams; each holds a thread.
CALLS_MAX: Final = 128
#: Longest wait for the gateway's answer; above the delays after wrong passwords.
ANSWER_TIMEOUT_S: Final = 120.0
_MIDDLEWARE: Final = "credentials"

#: The client library's error by ``Refusal.kind``. Flight has no error for a bad argument.
_ERRORS: Final[dict[str, Any]] = {
    "unauthenticated": fl.FlightUnauthenticatedError,
    "denied": fl.FlightUnauthorizedError,
    "busy": fl.FlightUnavailableError,
    "invalid": fl.FlightServerError,
    "internal": fl.FlightInternalError,
}


def refused(kind: str, text: str) -> Exception:
    """What to raise; the client finds *kind* in its error's ``extra_info``."""
    return _ERRORS[kind](text, kind.encode())


@dataclass(frozen=True, slots=True)
class Caller:
    """Attributes: session: at the gateway; principal: whose it is; token: "" for this call only."""

    session: str
    principal: str
    token: str


class _Credentials(fl.ServerMiddleware):
    """A call's credentials. Attributes: header: "" for none."""

    def __init__(self, header: str, token: str) -> None:
        self.header = header
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token else {}


class _CredentialsFactory(fl.ServerMiddlewareFactory):
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Credentials:
        header = next(iter(headers.get("authorization", ())), "")
        token = ""
        if info.method == fl.FlightMethod.HANDSHAKE:
            try:
                token = self._tokens.give(header)
            except CredentialsError as error:
                raise refused("unauthenticated", str(error)) from None
        return _Credentials(header, token)


class _AnyHandshake(fl.ServerAuthHandler):
    """Accepts any handshake: the headers hold the credentials."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Ask nothing more."""

    def is_valid(self, token: Any) -> str:
        return ""


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors of *method* into Flight's, and bound how many calls run."""

    @functools.wraps(method)
    def wrapped(self: FlightServer, context: Any, *arguments: Any) -> Any:
        if not self.calls.acquire(blocking=False):
            raise refused("busy", "the server is busy; try again")
        try:
            return method(self, context, *arguments)
        except fl.FlightError:
            raise
        except requests.BadRequestError as error:
            raise refused("invalid", str(error)) from None
        except Exception:
            _log.exception("%s failed", method.__name__)
            raise refused("internal", "internal error of the Flight server") from None
        finally:
            self.calls.release()

    return wrapped


class FlightServer(fl.FlightServerBase):
    """See the module. Made by :func:`make_server`."""

    def __init__(self, link: Link, start: protocol.Start, location: str, tls: Any) -> None:
        self.calls = threading.BoundedSemaphore(CALLS_MAX)
        self._tokens = Tokens()
        self._link = link
        self._start = start
        self._streams: Counter[str] = Counter()
        self._counting = threading.Lock()
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # no stubs
            location,
            auth_handler=_AnyHandshake(),
            tls_certificates=tls,
            middleware={_MIDDLEWARE: _CredentialsFactory(self._tokens)},
        )

    # --- Flight ------------------------------------------------------------------------------

    @_told
    def list_flights(self, context: Any, criteria: bytes) -> Any:
        with self._caller(context) as caller:
            return iter([self._info(caller, requests.Range(), b"{}")])

    @_told
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        with self._caller(context):
            asked = requests.range_of(descriptor.command or b"{}")
            return fl.SchemaResult(requests.schema_of(asked.columns))

    @_told
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        command = descriptor.command or b"{}"
        asked = requests.range_of(command)
        with self._caller(context) as caller:
            return self._info(caller, asked, command)

    @_told
    def do_get(self, context: Any, ticket: Any) -> Any:
        asked = requests.ticket_of(ticket.ticket)
        schema = requests.schema_of(asked.columns)
        caller = self._enter(context)
        leave = functools.partial(self._leave, caller)
        try:
            self._count(caller.principal)
        except BaseException:
            leave()
            raise

        def done() -> None:
            self._count(caller.principal, -1)
            leave()

        def ask(after: int) -> Future[protocol.Answer]:
            return self._link.ask(
                protocol.Page(caller.session, asked.epoch, after, asked.through, asked.skip)
            )

        batches = Batches(
            ask,
            lambda future: self._result(caller, future, protocol.Rows, None),
            done,
            gateway_name=self._start.gateway_name,
            epoch=asked.epoch,
            after=asked.after,
            through=asked.through,
            columns=asked.columns,
        )
        return fl.GeneratorStream(schema, batches)

    @_told
    def do_action(self, context: Any, action: Any) -> Any:
        body = action.body.to_pybytes() if action.body is not None else b""
        make = requests.ACTIONS.get(action.type)
        if make is None:
            raise requests.BadRequestError(
                f"no action {action.type!r}; there are: {', '.join(requests.ACTIONS)}"
            )
        with self._caller(context) as caller:
            view = self._asked(caller, make(caller.session, body or b"{}"))
        return iter([msgspec.json.encode(view)])

    @_told
    def list_actions(self, context: Any) -> Any:
        return [fl.ActionType(name, make.__doc__ or "") for name, make in requests.ACTIONS.items()]

    # --- what they are made of -----------------------------------------------------------------

    def _info(self, caller: Caller, asked: requests.Range, command: bytes) -> Any:
        view = self._asked(caller, protocol.Look(caller.session, asked.reader))
        after, through = asked.bounds(
            view, lambda at: self._asked(caller, protocol.Find(caller.session, at)).first
        )
        if after < through:
            # Fails at once if the range begins before the first row that is left.
            page = protocol.Page(caller.session, view.epoch, after, after + 1, asked.skip)
            self._result(caller, self._link.ask(page), protocol.Rows)
        endpoints = [
            fl.FlightEndpoint(fl.Ticket(ticket), [])
            for ticket in asked.tickets(view.epoch, after, through)
        ]
        return fl.FlightInfo(
            requests.schema_of(asked.columns),
            fl.FlightDescriptor.for_command(command),
            endpoints,
            ordered=True,
            app_metadata=msgspec.json.encode(view),
        )

    def _asked(self, caller: Caller, question: protocol.Question) -> protocol.View:
        return self._result(caller, self._link.ask(question), protocol.View)

    def _result(
        self,
        caller: Caller | None,
        future: Future[protocol.Answer],
        kind: type[Any],
        timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> Any:
        """The gateway's answer. Raises: a FlightError."""
        try:
            body = future.result(timeout_s).body
        except TimeoutError:
            raise refused("busy", "the gateway does not answer; try again") from None
        if isinstance(body, protocol.Refusal):
            if body.kind == "unauthenticated" and caller is not None:
                self._tokens.forget(caller.token)
            raise refused(body.kind, body.text)
        assert isinstance(body, kind), "the gateway answers what was asked"
        return body

    @contextlib.contextmanager
    def _caller(self, context: Any) -> Generator[Caller]:
        caller = self._enter(context)
        try:
            yield caller
        finally:
            self._leave(caller)

    def _enter(self, context: Any) -> Caller:
        """The caller. Raises: a FlightError."""
        header: str = context.get_middleware(_MIDDLEWARE).header
        peer = peer_of(context.peer())
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            username, password = "", None
            if header:
                try:
                    username, password = basic(header)
                except CredentialsError as error:
                    raise refused("unauthenticated", str(error)) from None
            session = self._logged_in(peer, username, password)
            return Caller(session.id, session.principal, "")
        entry = self._tokens.entry(token)
        if entry is None:
            raise refused("unauthenticated", "the session has ended; log in again")
        session = self._session(peer, token, entry)
        return Caller(session.id, session.principal, token)

    def _session(self, peer: str, token: str, entry: Entry) -> protocol.Session:
        with entry.lock:
            if entry.session is None:
                try:
                    entry.session = self._logged_in(peer, entry.username, entry.password)
                except BaseException:
                    self._tokens.forget(token)
                    raise
                entry.password = None
                self._tokens.used(token, entry)
            return entry.session

    def _logged_in(self, peer: str, username: str, password: bytes | None) -> protocol.Session:
        future = self._link.ask(protocol.Login(peer, username, password))
        return self._result(None, future, protocol.Session)

    def _leave(self, caller: Caller) -> None:
        if not caller.token:
            self._link.ask(protocol.Leave(caller.session))

    def _count(self, principal: str, change: int = 1) -> None:
        """Count a stream of *principal*. Raises: FlightUnavailableError."""
        with self._counting:
            if change > 0:
                whole = self._streams.total() >= self._start.streams_max
                if whole or self._streams[principal] >= self._start.streams_per_client_max:
                    limit = "streams_max" if whole else "streams_per_client_max"
                    raise refused("busy", f"too many reads at a time ({limit}); try again")
            self._streams[principal] += change


def make_server(link: Link, start: protocol.Start, port: int) -> Any:
    """A server that is listening. Raises: OSError, ArrowException."""
    host = start.host or "::"
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    scheme = "grpc+tls" if start.certificate else "grpc"
    tls = [(start.certificate, start.key)] if start.certificate else None
    return FlightServer(link, start, f"{scheme}://{where}", tls)
