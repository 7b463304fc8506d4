"""Shells complete commands, those of plugins, and values of options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def completed(line: str) -> list[str]:
    words = line.split(" ")
    asked = {
        "_TIDEGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tidegate"],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tidegate dest", ["destination"]),
        ("tidegate journal insp", ["inspect"]),
        ("tidegate connection list --sort un", ["unread"]),
        ("tidegate events --kind dest", ["destination"]),
    ],
)
def test_what_is_begun_is_completed(line: str, words: list[str]) -> None:
    assert completed(line) == words
