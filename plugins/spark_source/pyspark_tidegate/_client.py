"""A Flight client of the gateway: logs in when needed, and retries while the gateway is away."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark_tidegate._options import Options

fl: Final[Any] = importlib.import_module("pyarrow.flight")

T = TypeVar("T")

_PAUSE_MIN_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0
#: Time limit of one call. Streams of rows have none.
_CALL_TIMEOUT_S: Final = 150.0


class Gone(Exception):  # noqa: N818  # not an error as such
    """The gateway refuses for good: lost rows, offsets of another store, missing rights."""


class Client:
    """Made by :meth:`of`, one per process and options: the tasks of a worker share it."""

    _made: dict[Options, Client] = {}  # noqa: RUF012  # shared on purpose

    def __init__(self, options: Options) -> None:
        self._options = options
        self._client: Any = None
        self._headers: list[tuple[bytes, bytes]] = []

    @classmethod
    def of(cls, options: Options) -> Client:
        """The client for *options*; it connects on first use."""
        client = cls._made.get(options)
        if client is None:
            client = cls._made[options] = cls(options)
        return client

    def schema(self) -> Any:
        """The rows' ``pyarrow.Schema``."""
        descriptor = fl.FlightDescriptor.for_command(b"{}")
        return self._tried(lambda c, o: c.get_schema(descriptor, o).schema)

    def act(self, name: str, **values: object) -> dict[str, Any]:
        """Run an action; returns its answer."""
        action = fl.Action(name, json.dumps(values).encode())
        return self._tried(
            lambda c, o: json.loads(next(iter(c.do_action(action, o))).body.to_pybytes())
        )

    def plan(self, **wanted: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The log's range, and the tickets of the *wanted* range."""
        descriptor = fl.FlightDescriptor.for_command(json.dumps(wanted).encode())

        def plan(client: Any, options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            info = client.get_flight_info(descriptor, options)
            tickets = [json.loads(endpoint.ticket.ticket) for endpoint in info.endpoints]
            return json.loads(info.app_metadata), tickets

        return self._tried(plan)

    def rows(self, ticket: dict[str, Any]) -> Iterator[Any]:
        """The record batches of *ticket*; after an interruption it resumes after the last row."""
        after = ticket["after"]
        tries = _Tries(self._options.timeout)
        while True:
            asked = fl.Ticket(json.dumps({**ticket, "after": after}).encode())
            try:
                for chunk in self._connected().do_get(asked, self._call_options(None)):
                    if chunk.data.num_rows:
                        after = chunk.data.column("ack_seq")[-1].as_py()
                        tries = _Tries(self._options.timeout)
                        yield chunk.data
                return
            except fl.FlightError as error:
                self._wait(error, tries)

    # --- inside --------------------------------------------------------------------------------

    def _tried(self, call: Callable[[Any, Any], T]) -> T:
        tries = _Tries(self._options.timeout)
        while True:
            try:
                return call(self._connected(), self._call_options(_CALL_TIMEOUT_S))
            except fl.FlightError as error:
                self._wait(error, tries)

    def _wait(self, error: Any, tries: _Tries) -> None:
        """Pause before the next try. Raises: Gone, or *error*."""
        was_in = bool(self._headers)
        self._client, self._headers = None, []
        lost = isinstance(error, fl.FlightUnauthenticatedError)
        if lost and was_in and not tries.logged_in_again:
            # A wrong password looks the same: it shows at the first call, and is retried once.
            tries.logged_in_again = True
            return  # the session ended or the gateway restarted: log in again
        retried = (fl.FlightUnavailableError, fl.FlightTimedOutError)
        if not isinstance(error, retried):
            raise Gone(f"tidegate {self._options.uri}: {_plain(error)}") from None
        if not tries.pause():
            raise error

    def _connected(self) -> Any:
        """Raises: FlightError."""
        if self._client is None:
            options = self._options
            roots = {}
            if options.ca_file:
                roots = {"tls_root_certs": Path(options.ca_file).read_bytes()}
            client = fl.FlightClient(options.uri, **roots)
            secret = options.secret()
            if options.user or secret:  # a token names its bearer
                given = client.authenticate_basic_token(
                    options.user, secret, fl.FlightCallOptions(timeout=_CALL_TIMEOUT_S)
                )
                self._headers = [given]
            self._client = client
        return self._client

    def _call_options(self, timeout_s: float | None) -> Any:
        return fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)


class _Tries:
    """Growing pauses between tries. Args: timeout_s: since the first failure."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.logged_in_again = False
        self._deadline: float | None = None
        self._pause_s = _PAUSE_MIN_S

    def pause(self) -> bool:
        """Wait, if there is time for another try. Returns: False when there is none."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._timeout_s
        if now + self._pause_s > self._deadline:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)
        return True


def _plain(error: Any) -> str:
    """The gateway's error text, without gRPC's additions."""
    return str(error).partition(" gRPC client debug context")[0].partition(". Detail:")[0]
