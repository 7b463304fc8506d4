"""Java's output while a command uses it: hidden unless the command fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

#: How much of its end is shown.
_TAIL_BYTES: Final = 16 << 10


class JavaOutput:
    """Where it goes: a file without a name, which exists as long as somebody has it open.

    Java inherits standard output and error when it is started, and keeps them: wrap its start in :meth:`taken`.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="tidegate-java-", mode="ab+")  # noqa: SIM115 - closed by close

    @contextmanager
    def taken(self) -> Generator[None]:
        """Whatever is started meanwhile writes there."""
        sys.stdout.flush()
        sys.stderr.flush()
        kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        try:
            for descriptor in kept:
                os.dup2(self._file.fileno(), descriptor)
            yield
        finally:
            for descriptor, ours in kept.items():
                os.dup2(ours, descriptor)
                os.close(ours)

    def tell(self) -> None:
        """Write its end to standard error: something went wrong."""
        size = os.fstat(self._file.fileno()).st_size
        said = os.pread(self._file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        if said:
            sys.stderr.write(f"Java and Spark said:\n{said.decode('utf-8', 'replace').rstrip()}\n")

    def close(self) -> None:
        """Idempotent. Processes that still write there go on."""
        self._file.close()
