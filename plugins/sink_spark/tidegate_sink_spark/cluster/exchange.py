"""How a sink and a job that it did not start communicate: files in a directory that both see.

Each file is replaced as a whole, and numbers say what is newer: no clocks or file times are compared.

* ``task.json``, the sink's: what the job is to do, and a session that is new with each start of the sink;
* ``wish.json``, the sink's: numbers that grow when it wants a commit, or upkeep, now;
* ``answer.json``, the job's: its name, the session it works for, a beat that grows while it lives, and its
  last reports with the number of the last one.

Two jobs at once write the answer in turn; each tells the truth about the table, and the sink accepts both.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from tidegate_sink_spark._protocol import JobConfig, Report
from tidegate_sink_spark.job.durable import sync_files

#: Beside the directories of logs, whose names never begin with a dot.
EXCHANGE_NAME: Final = ".job"
TASK_NAME: Final = "task.json"
WISH_NAME: Final = "wish.json"
ANSWER_NAME: Final = "answer.json"
#: Reports that an answer repeats: the sink looks several times while a job makes one.
REPORTS_KEPT: Final = 20


class Task(msgspec.Struct, frozen=True):
    """What a job is to do. Attributes: session (new with each start of the sink), config."""

    session: str
    config: JobConfig


class Wish(msgspec.Struct, frozen=True):
    """The sink wants a commit, or upkeep, now.

    Attributes: session; number (grows with each commit that is wanted); compacts, vacuums (likewise, for turns of
        upkeep, and for those that vacuum).
    """

    session: str
    number: int
    compacts: int = 0
    vacuums: int = 0


class Answer(msgspec.Struct, frozen=True):
    """What a job says.

    Attributes:
        session: of the task that it works on.
        job: its name, unique among jobs.
        beat: grows while it lives.
        number: of the last report, counted from 1.
        reports: the latest ones, in order.
    """

    session: str
    job: str
    beat: int
    number: int
    reports: tuple[Report, ...]


Kind = TypeVar("Kind", Task, Wish, Answer)


def write(path: Path, value: Task | Wish | Answer, *, mode: int | None = None) -> None:
    """Replace *path* with *value*, as a whole. Raises: OSError.

    Args: mode: of the file; None: the process's default.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(msgspec.json.encode(value))
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_files((path,))


def read(path: Path, kind: type[Kind]) -> Kind | None:
    """What is in *path*; None when it is missing, or another version's. Raises: OSError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def own_reports(answer: Answer, job: str, seen: int) -> tuple[Report, ...]:
    """Reports of *answer* that are new to a reader who has seen *seen* of those of *job*."""
    if answer.job != job:
        return answer.reports
    count = answer.number - seen
    return answer.reports[-count:] if count > 0 else ()
