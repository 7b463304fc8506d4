"""The operator's socket: who is there when it ends does not stay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tidegate.operator_socket import SOCKET_NAME, OperatorSocket


class Writer:
    """A connection that says whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_one_that_came_just_before_the_end_is_closed_and_one_just_behind_it(
    tmp_path: Path,
) -> None:
    nobody: Any = object()
    served = OperatorSocket(nobody, tmp_path)
    await served.start()
    before: Any = Writer()
    served._connected(asyncio.StreamReader(), before)
    await served.stop()  # before the first step of the task that serves it
    await asyncio.sleep(0)
    assert before.is_closed
    behind: Any = Writer()
    served._connected(asyncio.StreamReader(), behind)
    assert behind.is_closed
    assert not (tmp_path / SOCKET_NAME).exists()
