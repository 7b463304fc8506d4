"""What a child says that was started meanwhile is kept, and shown when something went wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate_sink_spark.java.quiet import JavaOutput

CHILD = "import sys; print('starting', flush=True); input(); print('WARN late', file=sys.stderr)"


def test_a_child_that_was_started_meanwhile_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    output = JavaOutput()
    with output.taken():
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE)
    print("ours")
    child.communicate(b"\n")
    print("ours too", file=sys.stderr)
    assert capfd.readouterr() == ("ours\n", "ours too\n")
    output.tell()
    told = capfd.readouterr()
    assert told == ("", "Java and Spark said:\nstarting\nWARN late\n")
    output.close()
    output.close()


def test_only_the_last_of_much_is_told_and_nothing_of_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = JavaOutput()
    output.tell()
    assert capfd.readouterr() == ("", "")
    with output.taken():
        subprocess.run([sys.executable, "-c", "print('x' * 100_000 + 'end')"], check=True)
    output.tell()
    told = capfd.readouterr().err
    assert told.endswith("xend\n")
    assert len(told) < 20_000
    output.close()
