"""One process at a time, and the threads of one process together."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate_sink_spark.delta_rs.lock import table_lock
from tidegate_sink_spark.job import files
from tidegate_sink_spark.job.driver import CommitError
from tidegate_sink_spark.job.files import lock_path

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
_TRY = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(7)
"""


@contextmanager
def held_by_another(table: Path) -> Generator[None]:
    """Another process, which locks as Java does, has the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(lock_path(table))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate()


def is_free(table: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", _TRY, str(lock_path(table))], check=False)
    assert done.returncode in (0, 7)
    return done.returncode == 0


def test_a_lock_that_another_process_holds_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.05)
    with (
        held_by_another(tmp_path / "table"),
        pytest.raises(CommitError, match="another job has held"),
        table_lock(tmp_path / "table"),
    ):
        pytest.fail("two have the lock")
    with table_lock(tmp_path / "table"):
        pass


def test_the_first_to_end_does_not_give_up_the_lock_of_the_other(tmp_path: Path) -> None:
    """Closing any descriptor of the file would: the lock is the process's."""
    table = tmp_path / "table"
    with table_lock(table):
        with table_lock(table):
            assert not is_free(table)
        assert not is_free(table)
    assert is_free(table)


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(CommitError, match="lock cannot be taken"),
        table_lock(tmp_path / "nowhere" / "table"),
    ):
        pytest.fail("there is no such directory")
