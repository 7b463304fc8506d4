"""A connection to the gateway for work with long pauses between two requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Self

from tidegate.spi.commands import OperatorConnection
from tidegate.spi.operate import Answer, Request

#: The gateway ends connections that are idle for 60 s; Spark may take longer to start, or for a query.
SILENCE_S: Final = 20.0


class Asking:
    """An ``OperatorConnection`` that reconnects after ``SILENCE_S`` without a request. Use it as a context.

    Args: connect: makes one. Raises: what *connect* raises.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[OperatorConnection]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._now = now
        self._open = ExitStack()
        self._connection = self._open.enter_context(connect())
        self._asked_at = now()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_problem: object) -> None:
        self._open.close()

    def answer(self, request: Request) -> Answer:
        """See ``OperatorConnection``. Raises: also what connecting raises."""
        if self._now() - self._asked_at > SILENCE_S:
            self._open.close()
            self._connection = self._open.enter_context(self._connect())
        try:
            return self._connection.answer(request)
        finally:
            self._asked_at = self._now()
