"""`tidegate stomp send|receive|browse`: a STOMP client for the terminal, on stomp.py.

It speaks to any STOMP 1.2 broker. stomp.py is an optional dependency and imported only when a
command runs; it reads in a thread of its own, and everything it hears goes through one queue.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import queue
import sys
import time
import urllib.parse
from collections.abc import Generator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, final

import typer

from tidegate.spi import ClientError
from tidegate.spi.printable import printable_json
from tidegate_protocols.commands.values import (
    bad,
    read_file,
    read_pairs,
    read_password,
    read_wait,
    text_of,
    write_body,
)

#: Where the password comes from; never from an argument, which every user of the machine can read.
PASSWORD_VARIABLE: Final = "TIDEGATE_STOMP_PASSWORD"
_DEFAULT_URL: Final = "stomp://127.0.0.1:61613"
_DEFAULT_PORT: Final = 61613
_SUBSCRIPTION: Final = "1"
#: Frames that may wait to be printed; then stomp.py's thread waits, and TCP holds the broker back.
_WAITING_MAX: Final = 1000
#: Seconds after which a full queue is checked again.
_FULL_PAUSE_S: Final = 0.1
#: Disables stomp.py's own retries: one attempt, and our own clock.
_ATTEMPTS: Final = 1

app = typer.Typer(
    rich_markup_mode=None,
    help="Send, receive and browse messages at any STOMP 1.2 broker.",
    epilog=f"The password is read from {PASSWORD_VARIABLE}, or asked for. Exit code 8: the broker "
    "cannot be reached, refused, or did not answer in time.",
)


class AckMode(StrEnum):
    """When the broker may forget a message that was received."""

    AUTO = "auto"
    CLIENT = "client"
    CLIENT_INDIVIDUAL = "client-individual"


UrlOption = Annotated[str, typer.Option("--url", metavar="URL", help="The broker.")]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", metavar="NAME", help="User name to log in with.")
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME:VALUE", help="Additional header; repeatable."),
]
SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector", "-s", metavar="SQL", help="Only messages that match, e.g. \"color = 'red'\"."
    ),
]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the broker.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
DestinationArgument = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="For example /queue/NAME or /topic/NAME.")
]


@app.command()
def send(
    destination: DestinationArgument,
    body: Annotated[
        str | None,
        typer.Argument(metavar="BODY", help="Body of the message; without it, --file or stdin."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Send the contents of this file."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Send it this many times.")
    ] = 1,
    receipt: Annotated[
        bool,
        typer.Option(
            "--receipt/--no-receipt", help="Wait until the broker has confirmed each message."
        ),
    ] = True,
    url: UrlOption = _DEFAULT_URL,
    user: UserOption = None,
    header: HeaderOption = None,
    timeout: TimeoutOption = "10s",
    as_json: JsonOption = False,
) -> None:
    """Send a message.

    With --receipt, the default, success means that the broker has confirmed it.
    """
    headers = _headers(header)
    if body is not None and file is not None:
        raise typer.BadParameter("give either BODY or --file, not both")
    host, port = _address(url)
    seconds = read_wait(timeout, "--timeout")
    password = _password(user)
    if file is not None:
        data = read_file(file, "--file")
    elif body is not None:
        data = body.encode()
    else:
        data = sys.stdin.buffer.read()
    with _connected(host, port, user, password, seconds) as link:
        for number in range(1, count + 1):
            token = f"send-{number}" if receipt else None
            link.send(destination, data, headers, token)
            if token is not None:
                link.wait_receipt(token)
        link.leave()
    if as_json:
        typer.echo(json.dumps({"sent": count, "confirmed": receipt, "bytes": len(data)}))


@app.command()
def receive(
    destination: DestinationArgument,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: never.")
    ] = 1,
    ack: Annotated[
        AckMode, typer.Option("--ack", help="auto, client, or client-individual.")
    ] = AckMode.CLIENT_INDIVIDUAL,
    url: UrlOption = _DEFAULT_URL,
    user: UserOption = None,
    header: HeaderOption = None,
    selector: SelectorOption = None,
    timeout: TimeoutOption = "10s",
    as_json: JsonOption = False,
) -> None:
    """Receive messages.

    Each is acknowledged after it was printed. When no message comes within --timeout the command
    ends, with exit code 8 if --count asked for more.
    """
    headers = _headers(header) | _selector(selector)
    host, port = _address(url)
    seconds = read_wait(timeout, "--timeout")
    password = _password(user)
    with _connected(host, port, user, password, seconds) as link:
        link.subscribe(destination, ack, headers)
        received = 0
        while count == 0 or received < count:
            frame = link.next_message()
            if frame is None:
                break
            _print(frame, as_json)
            received += 1
            if ack is not AckMode.AUTO:
                link.acknowledge(frame)
        link.leave()
    if received < count:
        raise ClientError(f"received {received} of {count} messages; no more within {timeout}")


@app.command()
def browse(
    destination: DestinationArgument,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after this many messages; 0: all.")
    ] = 0,
    url: UrlOption = _DEFAULT_URL,
    user: UserOption = None,
    header: HeaderOption = None,
    selector: SelectorOption = None,
    timeout: TimeoutOption = "2s",
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a queue and leave them there.

    For brokers with queue browsing (the header `browser:true` of SUBSCRIBE). The end is the frame
    with `browser:end` that such brokers send, or --timeout without a message.
    """
    headers = _headers(header) | _selector(selector)
    host, port = _address(url)
    seconds = read_wait(timeout, "--timeout")
    password = _password(user)
    with _connected(host, port, user, password, seconds) as link:
        link.subscribe(destination, AckMode.AUTO, headers | {"browser": "true"})
        shown = 0
        while count == 0 or shown < count:
            frame = link.next_message()
            if frame is None or frame.headers.get("browser") == "end":
                break
            _print(frame, as_json)
            shown += 1
        link.leave()


# ------------------------------------------------------------------------------------- the client


class _Listener:
    """Called by stomp.py, in its own thread: puts everything into one bounded queue.

    Attributes: heard: kind and frame; is_closed: nobody is listening any more.
    """

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, Any]] = queue.Queue(_WAITING_MAX)
        self.is_closed = False

    def on_connected(self, frame: Any) -> None:
        self._put("CONNECTED", frame)

    def on_message(self, frame: Any) -> None:
        self._put("MESSAGE", frame)

    def on_receipt(self, frame: Any) -> None:
        self._put("RECEIPT", frame)

    def on_error(self, frame: Any) -> None:
        self._put("ERROR", frame)

    def on_disconnected(self) -> None:
        self._put("LOST", None)

    def _put(self, kind: str, frame: Any) -> None:
        while not self.is_closed:
            with contextlib.suppress(queue.Full):
                self.heard.put((kind, frame), timeout=_FULL_PAUSE_S)
                return


@final
class _Link:
    """One connection. All waits end after *seconds* with a ClientError."""

    def __init__(self, stomp: Any, host: str, port: int, seconds: float) -> None:
        self._stomp = stomp
        self._seconds = seconds
        self._broker = f"{host}:{port}"
        self._listener = _Listener()
        self._messages: list[Any] = []
        self.connection: Any = stomp.Connection12(
            [(host, port)],
            timeout=seconds,
            reconnect_attempts_max=_ATTEMPTS,
            auto_decode=False,
            vhost=host,
        )
        self.connection.set_listener("tidegate", self._listener)

    def connect(self, user: str | None, password: str | None) -> None:
        try:
            self.connection.connect(user, password, wait=False)
        except (self._stomp.exception.StompException, OSError) as error:
            raise ClientError(f"cannot reach {self._broker}{_because(error)}") from error
        self._wait("CONNECTED", "answer to CONNECT")

    def send(
        self, destination: str, data: bytes, headers: dict[str, str], token: str | None
    ) -> None:
        more = dict(headers)
        if token is not None:
            more["receipt"] = token
        self._call(self.connection.send, destination, data, headers=more)

    def subscribe(self, destination: str, ack: AckMode, headers: dict[str, str]) -> None:
        more = headers | {"receipt": "subscribe"}
        self._call(self.connection.subscribe, destination, _SUBSCRIPTION, ack.value, headers=more)
        self.wait_receipt("subscribe")

    def acknowledge(self, frame: Any) -> None:
        self._call(self.connection.ack, frame.headers["ack"])

    def wait_receipt(self, token: str) -> None:
        self._wait("RECEIPT", f"RECEIPT for {token}")

    def next_message(self) -> Any | None:
        """The next MESSAGE; None when none comes in time."""
        if self._messages:
            return self._messages.pop(0)
        try:
            return self._wait("MESSAGE", "message")
        except _SilentError:
            return None

    def leave(self) -> None:
        """DISCONNECT, and wait for its receipt: everything before it has been taken."""
        # Not its disconnect(): that reports a lost connection to listeners before the RECEIPT.
        self._call(self.connection.send_frame, "DISCONNECT", {"receipt": "leave"})
        self._wait("RECEIPT", "RECEIPT for DISCONNECT")

    def close(self) -> None:
        """Close the socket, whatever state it is in."""
        self._listener.is_closed = True  # stomp.py's thread may be waiting for room
        with contextlib.suppress(Exception):
            self.connection.transport.disconnect_socket()

    def _call(self, function: Any, /, *arguments: Any, **named: Any) -> None:
        try:
            function(*arguments, **named)
        except (self._stomp.exception.StompException, OSError) as error:
            self._raise_what_was_said()
            raise ClientError(f"lost the connection to {self._broker}{_because(error)}") from error

    def _raise_what_was_said(self) -> None:
        """When a connection broke, the ERROR received before says why."""
        with contextlib.suppress(queue.Empty):
            while True:
                kind, frame = self._listener.heard.get(timeout=1.0)
                if kind == "ERROR":
                    raise _refused(self._broker, frame)

    def _wait(self, wanted: str, what: str) -> Any:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                left = max(0.0, deadline - time.monotonic())
                kind, frame = self._listener.heard.get(timeout=left)
            except queue.Empty:
                raise _SilentError(
                    f"no {what} from {self._broker} within {self._seconds:g} s"
                ) from None
            if kind == wanted:
                return frame
            if kind == "ERROR":
                raise _refused(self._broker, frame)
            if kind == "LOST":
                raise ClientError(f"{self._broker} closed the connection")
            if kind == "MESSAGE":
                self._messages.append(frame)  # it came before the receipt


class _SilentError(ClientError):
    """Nothing came in time."""


@contextlib.contextmanager
def _connected(
    host: str, port: int, user: str | None, password: str | None, seconds: float
) -> Generator[_Link]:
    link = _Link(_load(), host, port, seconds)
    try:
        link.connect(user, password)
        yield link
    finally:
        link.close()


def _load() -> Any:
    """stomp.py. Raises: ClientError that says what to install."""
    try:
        stomp = importlib.import_module("stomp")
        importlib.import_module("stomp.exception")
    except ImportError as error:
        raise ClientError(
            "`tidegate stomp` needs stomp.py: pip install 'tidegate-protocols[clients]'"
        ) from error
    logging.getLogger("stomp.py").disabled = True  # our one line says it
    return stomp


def _refused(broker: str, frame: Any) -> ClientError:
    """The broker's own words: the short message, and the body's first line if it says more."""
    short = str(frame.headers.get("message", "")).strip()
    body = frame.body
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    first = text.strip().partition("\n")[0].strip()
    words = [part for part in (short, first if first not in short else "") if part]
    return ClientError(f"{broker} refused: {'; '.join(words) or 'it sent ERROR without a reason'}")


def _because(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f": {text}" if text else ""


# ---------------------------------------------------------------------------------------- helpers


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise bad("--url", str(error)) from None
    if parts.scheme != "stomp" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise bad("--url", f"{url!r} is not like {_DEFAULT_URL}")
    if parts.username is not None or parts.password is not None:
        raise bad("--url", f"do not put a login into the URL; use --user and {PASSWORD_VARIABLE}")
    return parts.hostname, port if port is not None else _DEFAULT_PORT


def _headers(lines: list[str] | None) -> dict[str, str]:
    return dict(reversed(read_pairs(lines, "--header")))  # the first one counts, as in STOMP


def _selector(selector: str | None) -> dict[str, str]:
    return {} if selector is None else {"selector": selector}


def _password(user: str | None) -> str | None:
    password = read_password(user, PASSWORD_VARIABLE, None, "")
    return None if password is None else password.decode("utf-8", "surrogateescape")


def _print(frame: Any, as_json: bool) -> None:
    body: bytes = frame.body if isinstance(frame.body, bytes) else str(frame.body).encode()
    if not as_json:
        write_body(body)
        return
    shown = {"headers": dict(frame.headers), **text_of("body", body)}
    sys.stdout.write(printable_json(json.dumps(shown, ensure_ascii=False)) + "\n")
    sys.stdout.flush()
