"""``python -m tidegate_sink_spark.staging.worker FD``: the process that builds and seals segments.

It decodes what the gateway read, so that no object of a message is made there.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from tidegate.spi import AcknowledgedMessage, EncodedRows
from tidegate.spi.private_files import closed_umask
from tidegate_sink_spark.staging import arrow, process
from tidegate_sink_spark.staging.building import Segment
from tidegate_sink_spark.staging.dead import DeadLetter
from tidegate_sink_spark.staging.selection import Selection
from tidegate_sink_spark.staging.storage import StagingDirectory

#: The gateway is more important when the processor is short.
NICENESS: Final = 5
_RECEIVE_BYTES: Final = 1 << 20


def main(arguments: list[str]) -> None:
    """Build until the gateway is gone, or asks for no more."""
    gateway = os.getppid()
    os.nice(NICENESS)
    with socket.socket(fileno=int(arguments[0])) as link:
        first = _frame(link)
        if first is None:
            return
        setup = process.decode_setup(first)
        if setup.umask is not None:
            os.umask(setup.umask)
        with closed_umask():
            segment = make_segment(setup, gateway)
            while (data := _frame(link)) is not None:
                link.sendall(process.frame(answer(segment, process.decode_question(data))))


def make_segment(setup: process.Setup, gateway: int) -> Segment:
    """What *setup* says. Args: gateway: its process id: what is written when it is gone is given up."""

    def write_parquet(path: Path, batches: Iterable[Any]) -> None:
        arrow.write_parquet(path, batches)
        if os.getppid() != gateway:
            # The next gateway has this directory by now, and knows of no file that comes later.
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
    """Do what the gateway asks."""
    match question:
        case process.Add():
            rows, letters = decoded(question.runs)
            return segment.add(question.segment, rows, letters)
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


def decoded(runs: Iterable[EncodedRows]) -> tuple[list[AcknowledgedMessage], list[DeadLetter]]:
    """The rows, and those whose message cannot be decoded."""
    rows: list[AcknowledgedMessage] = []
    letters: list[DeadLetter] = []
    for run in runs:
        try:
            rows += run.decode()
        except msgspec.DecodeError:
            _decode_each(run, rows, letters)
    return rows, letters


def _decode_each(
    run: EncodedRows, rows: list[AcknowledgedMessage], letters: list[DeadLetter]
) -> None:
    for number, found in enumerate(run.decode_each()):
        if isinstance(found, AcknowledgedMessage):
            rows.append(found)
            continue
        known, raw = run.without_message(number), run.messages[number]
        reason = f"the message cannot be decoded: {found}"
        letters.append(DeadLetter(run.first + number, reason, known, raw, time.time_ns() // 1_000))


def _frame(link: socket.socket) -> bytearray | None:
    """The next frame; None when there is none any more."""
    size = _exactly(link, process.LENGTH_BYTES)
    return None if size is None else _exactly(link, int.from_bytes(size, "little"))


def _exactly(link: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = link.recv_into(view, min(len(view), _RECEIVE_BYTES))
        if not count:
            return None
        view = view[count:]
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
