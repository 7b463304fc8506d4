"""stomp.py's connection, made to keep what a bridge must not lose.

stomp.py 9.0 sends header names unescaped, and of repeated headers receives only the first. With TLS
it does not notice that the other side has closed, and its disconnect can wait for ever. Waiting for
CONNECTED has no limit, and its reconnecting ignores what was not confirmed. So the bridge escapes,
reads the headers and reconnects itself, and uses stomp.py for the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

from tidegate_bridge import _protocol as protocol
from tidegate_bridge.remote.lane import LaneError

# stomp.py has no type information.
_exceptions: Any = importlib.import_module("stomp.exception")
_protocols: Any = importlib.import_module("stomp.protocol")
_transports: Any = importlib.import_module("stomp.transport")

Pairs: TypeAlias = list[tuple[str, str]]

#: Bytes per read: stomp.py copies its buffer each time, quadratic for large bodies in small reads.
_READ_BYTES: Final = 1 << 20
#: Our heart-beat, in milliseconds. We ask for none: while the bridge waits for room it reads
#: nothing. TCP notices a dead peer (20 s idle, then 3 probes in 15 s).
_HEARTBEATS: Final = (10_000, 0)
_KEEPALIVE: Final = ("linux", 20, 5, 3)
_JOIN_S: Final = 5.0
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", ":": "\\c", "\r": "\\r"})
#: Artemis gives no reason, but all properties of the message, with a new id each time: not to log.
_DUMPED: Final = re.compile(r"\b(\w*Message)\[.*", re.DOTALL)
_UNESCAPES: Final[Mapping[str, str]] = {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}


class Heard(Protocol):
    """Callbacks for what arrives, in stomp.py's thread."""

    def message(self, pairs: Pairs, body: bytes) -> None: ...

    def receipt(self, receipt_id: str) -> None: ...

    def error(self, headers: Mapping[str, str], text: str) -> None: ...

    def gone(self) -> None: ...


class StompConnection:
    """One connection; never used again once it is lost."""

    def __init__(self, start: protocol.Start, heard: Heard) -> None:
        self._start = start
        self._heard = heard
        self._answered = threading.Event()
        self._connected: Mapping[str, str] | None = None
        self._refused = ""
        address = (start.host, start.port)
        transport: Any = _transports.Transport(
            [address],
            prefer_localhost=False,
            try_loopback_connect=False,
            reconnect_attempts_max=1,
            reconnect_sleep_initial=0.0,
            timeout=start.connect_timeout,
            keepalive=_KEEPALIVE,
            vhost=start.virtual_host or None,
            auto_decode=False,
            recv_bytes=_READ_BYTES,
        )
        self._is_tls = start.scheme == "stomps"
        if self._is_tls:
            transport.set_ssl(
                [address],
                key_file=start.key or None,
                cert_file=start.certificate or None,
                ca_certs=start.ca or None,
            )
        transport.process_frame = self._with_pairs(transport.process_frame)
        transport.receive = self._ending(transport, transport.receive)
        self._transport = transport
        self._client: Any = _protocols.Protocol12(
            transport, heartbeats=_HEARTBEATS, auto_content_length=False
        )
        self._client._escape_headers = _escape
        transport.set_listener("bridge", self)

    def open(self, client_id: str) -> str:
        """Connect and log in. Returns: what the other broker calls itself. Raises: LaneError."""
        start = self._start
        where = f"{start.scheme}://{start.host}:{start.port}"
        problem = _unreachable(start)
        if problem:
            raise LaneError(
                f"{where} cannot be reached: {problem}", "start it, or correct `remote`"
            )
        try:
            self._transport.start()
            headers = {"client-id": client_id} if client_id else {}
            self._client.connect(
                start.user or None,
                start.password or None,
                wait=False,
                headers=headers,
                with_connect_command=True,
            )
        except (_exceptions.StompException, OSError):
            remedy = "correct `remote`"
            if self._is_tls:
                remedy = "is it TLS there, and its certificate from an authority of `tls_ca`, for this name?"
            raise LaneError(f"{where} ends the connection at once", remedy) from None
        self._answered.wait(start.connect_timeout)
        if self._connected is None:
            if self._refused:
                raise LaneError(
                    f"{where} refuses the connection: {self._refused}",
                    "correct `user`, `password_file` or `virtual_host`, or what that user may do there",
                )
            raise LaneError(f"{where} does not answer CONNECT", "is it STOMP that it speaks there?")
        return self._connected.get("server", "")

    def send_frame(self, command: str, headers: Mapping[str, object], body: bytes = b"") -> None:
        """Send a frame. Args: headers: a tuple stands for a repeated header. Raises: LaneError."""
        try:
            self._client.send_frame(command, dict(headers), body)
        except (_exceptions.StompException, OSError, AttributeError) as error:
            # AttributeError: stomp.py drops the socket in its other thread
            raise LaneError(f"the connection was lost: {error}", "") from None

    def close(self) -> None:
        """Close at once. Idempotent."""
        transport = self._transport
        transport.running = False
        found: socket.socket | None = transport.socket
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
        thread: threading.Thread | None = transport.io_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
        if thread is None and found is not None:
            found.close()

    # --- what stomp.py calls, in its own thread ------------------------------------------------

    def on_connected(self, frame: Any) -> None:
        self._connected = frame.headers
        self._answered.set()

    def on_message(self, frame: Any) -> None:
        self._heard.message(frame.pairs, frame.body)

    def on_receipt(self, frame: Any) -> None:
        self._heard.receipt(frame.headers.get("receipt-id", ""))

    def on_error(self, frame: Any) -> None:
        body = bytes(frame.body or b"").decode("utf-8", "replace").strip()
        text = " ".join(f"{frame.headers.get('message', '')} {body}".split())
        text = _DUMPED.sub(r"\1 […]: its log says why", text)[:300]
        if self._answered.is_set():
            self._heard.error(frame.headers, text)
        else:
            self._refused = text or "without a reason"
            self._answered.set()

    def on_disconnected(self) -> None:
        self._answered.set()
        self._heard.gone()

    @staticmethod
    def _with_pairs(process_frame: Any) -> Any:
        def process(frame: Any, data: bytes) -> None:
            if frame.cmd == "MESSAGE":
                frame.pairs = pairs_of(data)
            process_frame(frame, data)

        return process

    @staticmethod
    def _ending(transport: Any, receive: Any) -> Any:
        def read() -> Any:
            data: bytes | None = receive()
            if data == b"" and not transport.blocking:
                transport.running = False  # closed by the other side: stomp.py would poll for ever
            return data

        return read


def pairs_of(data: bytes) -> Pairs:
    """All headers of a received frame, in order."""
    head, _, _ = data.lstrip(b"\r\n").replace(b"\r\n", b"\n", 1000).partition(b"\n\n")
    found: Pairs = []
    for line in head.decode("utf-8", "replace").split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.append((_unescaped(name), _unescaped(value)))
    return found


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    rest = iter(text)
    for character in rest:
        if character == "\\":
            code = next(rest, "")
            pieces.append(_UNESCAPES.get(code, "\\" + code))
        else:
            pieces.append(character)
    return "".join(pieces)


def _escape(headers: dict[str, object]) -> None:
    """Escape in place, as stomp.py expects."""
    written = list(headers.items())
    headers.clear()
    for name, value in written:
        values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        headers[name.translate(_ESCAPES)] = tuple(str(one).translate(_ESCAPES) for one in values)


def _unreachable(start: protocol.Start) -> str:
    """Why connecting fails, which stomp.py does not say; "" if it works."""
    try:
        with socket.create_connection((start.host, start.port), start.connect_timeout):
            return ""
    except OSError as error:
        return error.strerror or str(error)
