"""``python -m tidegate_sink_spark.staging.worker FD [ROOM]``: the process that builds and seals segments.

It decodes what the gateway read, so that the gateway makes no message objects.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tidegate.spi.private_files import closed_umask
from tidegate_sink_spark.staging import arrow, process
from tidegate_sink_spark.staging.building import Segment
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.storage import StagingDirectory

_ROOM_BYTES: Final = 1 << 20


def main(arguments: list[str]) -> None:
    """Build until the gateway is gone, or its questions end."""
    gateway = os.getppid()
    with socket.socket(fileno=int(arguments[0])) as link:
        frames = _Frames(link, _shared(arguments[1:]))
        first = frames.next()
        if first is None:
            return
        setup = process.decode_setup(first)
        if setup.umask is not None:
            os.umask(setup.umask)
        with closed_umask():
            segment = make_segment(setup, gateway)
            # A row is made of tuples. Thousands live until they become columns, and none is in a cycle, so it is
            # useless to look for cycles among them again and again.
            gc.freeze()
            gc.disable()
            while (data := frames.next()) is not None:
                question = process.decode_question(data)
                link.sendall(process.frame(answer(segment, question)))
                if isinstance(question, process.Seal):
                    gc.collect()  # there are no rows now


def make_segment(setup: process.Setup, gateway: int) -> Segment:
    """The segment for *setup*. Args: gateway: its process id: once it is gone, what is being written is dropped."""

    def write_parquet(path: Path, batches: Iterable[Any]) -> None:
        arrow.write_parquet(path, batches)
        if os.getppid() != gateway:
            # By now the next gateway has this directory, and does not know of files that come later.
            os._exit(0)

    further = setup.further.make()
    directory = StagingDirectory(
        Path(setup.directory),
        is_shared=setup.is_shared,
        write_parquet=write_parquet,
        further=further.fields,
    )
    selection = Selection(setup.include, setup.exclude)
    return Segment(directory, setup.gateway_name, setup.epoch, selection, further)


def answer(segment: Segment, question: process.Question) -> process.Answer:
    """Carry out *question*."""
    match question:
        case process.Add():
            return segment.add(question.segment, question.runs)
        case process.Build():
            return process.Built(segment.build(question.segment))
        case process.Seal():
            try:
                file = segment.seal(
                    question.segment, question.lo, question.hi, question.taken, question.letters
                )
            except OSError as exc:
                return process.Refused(exc.errno or errno.EIO, exc.strerror or str(exc))
            return process.Sealed(file.path.name, file.size_bytes, file.rows, file.dead)


def _shared(descriptors: list[str]) -> memoryview:
    """The memory that the gateway shares, if any."""
    if not descriptors:
        return memoryview(b"")
    fd = int(descriptors[0])
    try:
        return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(fd)


class _Frames:
    """Frames that arrive over a socket, or are in shared memory by then, one by one.

    Socket data goes into one piece of memory: a new one per frame, of hundreds of kilobytes, would be requested
    from the system and cleared each time.
    """

    def __init__(self, link: socket.socket, shared: memoryview) -> None:
        self._link = link
        self._shared = shared
        self._room = bytearray(_ROOM_BYTES)

    def next(self) -> memoryview | None:
        """The next frame, valid until the next call; None at the end."""
        head = self._exactly(process.LENGTH_BYTES)
        if head is None:
            return None
        length = int.from_bytes(head, "little")
        if length & process.IN_ROOM:
            return self._shared[: length ^ process.IN_ROOM]
        return self._exactly(length)

    def _exactly(self, size: int) -> memoryview | None:
        if size > len(self._room):
            self._room = bytearray(size)
        whole = memoryview(self._room)[:size]
        view = whole
        while view:
            count = self._link.recv_into(view)
            if not count:
                return None
            view = view[count:]
        return whole


if __name__ == "__main__":
    main(sys.argv[1:])
