"""Directories and files that are this user's alone, and what is said of those that are not."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.spi import ConfigError, private_files
from tidegate.spi.private_files import (
    closed_umask,
    inherited_umask,
    make_private_directory,
    private_opener,
    problem_of_others,
    read_text,
    warn_of_others,
)


@pytest.fixture(params=[0o000, 0o022, 0o777], ids="{:03o}".format)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Once the test's directory is there: who is not root could not enter one that is made under 777."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def open_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the directories above the tests' let everybody pass."""
    monkeypatch.setattr(private_files, "_within_reach", lambda _path: 0o077)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_each_directory_that_is_made_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_directory(tmp_path / "a/b/c")
        with open(tmp_path / "a/file", "wb", opener=private_opener):
            pass
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path / "a/file") == 0o600


def test_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    make_private_directory(tmp_path / "a")
    assert mode(tmp_path / "a") == 0o755


def test_a_closed_umask_is_opened_again(umask: int, tmp_path: Path) -> None:
    assert inherited_umask() is None
    with closed_umask():
        assert inherited_umask() == umask
        (tmp_path / "file").touch()
        assert mode(tmp_path / "file") == 0o600
    assert inherited_umask() is None
    assert os.umask(umask) == umask


@pytest.mark.parametrize(
    ("bits", "says"),
    [
        (0o755, "everybody on this machine can read and enter it (mode 0755)"),
        (0o777, "everybody on this machine can read and change and enter it"),
        (0o750, "its group on this machine can read and enter it"),
        (0o701, "everybody on this machine can enter it"),
        (0o700, ""),
    ],
)
@pytest.mark.usefixtures("open_above")
def test_who_may_do_what_with_a_directory(tmp_path: Path, bits: int, says: str) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    directory.chmod(bits)
    problem = problem_of_others(directory)
    assert problem.startswith(says)
    assert bool(problem) is bool(says)
    if says:
        assert problem.endswith(f"run: chmod -R go-rwx {directory}")


@pytest.mark.usefixtures("open_above")
def test_who_may_change_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.touch()
    file.chmod(0o644)
    assert problem_of_others(file, among=0o022) == ""
    file.chmod(0o664)
    problem = problem_of_others(file, among=0o022)
    assert problem.startswith("its group on this machine can change it")
    assert problem.endswith(f"run: chmod go-w {file}")


@pytest.mark.usefixtures("open_above")
def test_a_pipe_is_nobody_else_s(tmp_path: Path) -> None:
    """As with ``--config <(…)``, whose name leads to no file."""
    reader, writer = os.pipe()
    try:
        assert problem_of_others(Path(f"/dev/fd/{reader}")) == ""
    finally:
        os.close(reader)
        os.close(writer)
    (tmp_path / "link").symlink_to("/dev/null")
    assert problem_of_others(tmp_path / "link") == ""


def test_a_closed_directory_above_keeps_them_out(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    inner.chmod(0o777)
    outer.chmod(0o700)
    assert problem_of_others(inner) == ""


@pytest.mark.usefixtures("open_above")
def test_a_warning_names_the_path_and_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        assert warn_of_others(tmp_path, "data directory")
    assert f"data directory {tmp_path}: everybody" in caplog.text
    tmp_path.chmod(0o700)
    assert not warn_of_others(tmp_path, "data directory")


# ---------------------------------------------------------------------------- small files that are read


def problem(path: Path, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_text(path, key="users", bytes_max=10, **arguments)
    assert caught.value.key == "users"
    return caught.value.problem


def test_a_small_file_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("ten bytes\n")
    path.chmod(0o644)
    assert read_text(path, key="users", bytes_max=10) == "ten bytes\n"
    assert read_text(path, key="users", bytes_max=10, others=0o022) == "ten bytes\n"


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ""):
        assert problem(tmp_path / name) == f"{tmp_path / name} is not a regular file"
    assert problem(Path("/dev/null")) == "/dev/null is not a regular file"


def test_a_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    text = problem(path, missing="make it")
    assert text == f"{path} cannot be read: No such file or directory; make it"
    path.write_bytes(b"eleven byte")
    assert problem(path) == f"{path} is larger than 10 bytes"
    path.write_bytes(b"\xff")
    assert problem(path) == f"{path} is not UTF-8 text"


def test_others_may_not_have_what_is_denied(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    for mode_, others, what in (
        (
            0o664,
            0o022,
            f"written by others (mode 0664), who could then cheat; run: chmod go-w {path}",
        ),
        (
            0o604,
            0o027,
            f"read or written by others (mode 0604), who could then cheat; run: chmod 600 {path}",
        ),
    ):
        path.chmod(mode_)
        told = problem(path, others=others, danger="cheat")
        assert told == f"{path} can be {what}"


def test_a_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        problem(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
