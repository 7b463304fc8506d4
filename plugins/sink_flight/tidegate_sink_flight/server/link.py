"""The server's end of the link to the gateway: calls from many threads, answers to each."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
from concurrent.futures import Future
from typing import Final

from tidegate_sink_flight import _protocol as protocol

_log = logging.getLogger("tidegate.sink.flight.server")

_RECEIVE_BYTES: Final = 1 << 20


class Link:
    """Ends the process when the gateway is gone: without it the server is useless."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[protocol.Answer]] = {}
        self._sending = threading.Lock()

    def receive_start(self) -> protocol.Start:
        """The first frame."""
        return protocol.decode_start(self._frame())

    def follow(self) -> None:
        """Deliver answers until the gateway is gone; never returns."""
        code = 1
        try:
            while True:
                answer = protocol.decode_answer(self._frame())
                answer = protocol.with_tails(answer, self._exactly)
                future = self._waiting.pop(answer.id, None)
                if future is not None:
                    future.set_result(answer)
        except (EOFError, OSError):
            code = 0
        except Exception:
            _log.exception("what the gateway says is not understood")
        finally:
            # Exit without waiting: a thread may be blocked for ever writing to a client that reads
            # nothing.
            os._exit(code)

    def ask(self, question: protocol.Question) -> Future[protocol.Answer]:
        """Send a call. Returns: the future answer."""
        future: Future[protocol.Answer] = Future()
        number = next(self._ids)
        self._waiting[number] = future
        data = protocol.frame(protocol.Call(number, question))
        with self._sending:
            self._socket.sendall(data)
        return future

    def tell(self, question: protocol.Ready) -> None:
        """Send a call that gets no answer."""
        with self._sending:
            self._socket.sendall(protocol.frame(protocol.Call(0, question)))

    def _frame(self) -> bytearray:
        size = int.from_bytes(self._exactly(protocol.LENGTH_BYTES), "little")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view, min(len(view), _RECEIVE_BYTES))
            if not count:
                raise EOFError
            view = view[count:]
        return data
