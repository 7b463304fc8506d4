"""Files that are written through a mapping: the same bytes, and no mapping where it could kill."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest

from tidegate_store_journal.log import mapped as _mapped
from tidegate_store_journal.log.mapped import (
    COPY_BYTES_MAX,
    WINDOW_BYTES,
    MappedFile,
    can_map,
    file_system_of,
    with_mapping,
)
from tidegate_store_journal.log.storage import DirectoryFile, DirectoryStorage

LENGTH = 3 * WINDOW_BYTES + 5000
NAME = "journal-0000000001.data"


def made(tmp_path: Path, length: int = LENGTH) -> MappedFile:
    file = DirectoryStorage(tmp_path, wrap=with_mapping).open(NAME, create=True)
    assert isinstance(file, MappedFile)
    file.preallocate(length)
    return file


def test_whatever_is_written_is_what_is_read(tmp_path: Path) -> None:
    file = made(tmp_path)
    expected = bytearray(LENGTH)
    chance = random.Random(5)
    mapped = 0
    for _ in range(400):
        size = chance.choice([1, 300, 5000, COPY_BYTES_MAX, COPY_BYTES_MAX + 1])
        offset = chance.randrange(LENGTH - size)
        data = chance.randbytes(size)
        middle = chance.randrange(size + 1)
        file.pwritev((data[:middle], data[middle:]), offset)
        mapped += file.is_mapped
        expected[offset : offset + size] = data
        assert file.pread(size + 10, offset) == expected[offset : offset + size + 10]
    assert mapped > 200
    file.datasync()
    assert file.length == LENGTH
    file.close()
    file.close()
    assert (tmp_path / NAME).read_bytes() == expected


def test_the_window_moves_along_and_the_last_one_ends_with_the_file(tmp_path: Path) -> None:
    file = made(tmp_path)
    for offset in range(0, LENGTH - 1000, 1000):
        file.pwritev((b"x" * 1000,), offset)
        assert file.is_mapped
        window = file._window  # pyright: ignore[reportPrivateUsage]
        assert window is not None
        assert len(window) <= WINDOW_BYTES
    file.pwritev((b"end",), LENGTH - 3)
    assert file.is_mapped
    file.close()
    assert (tmp_path / NAME).read_bytes()[-3:] == b"end"


def test_a_long_write_is_a_system_call(tmp_path: Path) -> None:
    file = made(tmp_path)
    file.pwritev((bytes(COPY_BYTES_MAX + 1),), 0)
    assert not file.is_mapped
    file.close()


def test_a_file_whose_blocks_are_not_allocated_is_not_mapped(tmp_path: Path) -> None:
    """On a full disk a store into a hole would kill the gateway."""
    (tmp_path / NAME).write_bytes(b"")
    os.truncate(tmp_path / NAME, LENGTH)
    file = DirectoryStorage(tmp_path, wrap=with_mapping).open(NAME)
    assert isinstance(file, MappedFile)
    file.pwritev((b"data",), 100)
    assert not file.is_mapped
    assert file.pread(4, 100) == b"data"
    file.preallocate(LENGTH)
    file.pwritev((b"more",), 200)
    assert file.is_mapped
    file.close()


def test_a_write_behind_the_end_makes_the_file_longer(tmp_path: Path) -> None:
    file = made(tmp_path, 8192)
    file.pwritev((b"data",), 8190)
    assert not file.is_mapped
    assert file.length == 8194
    file.close()


def test_only_data_files_are_mapped(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, wrap=with_mapping)
    for name, is_mapped in (("bindings", False), (NAME, True), (NAME + ".tmp", True)):
        file = storage.open(name, create=True)
        assert isinstance(file, MappedFile) is is_mapped
        assert isinstance(file, DirectoryFile) is not is_mapped
        file.close()


MOUNTS = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 25 0:30 / /data rw - btrfs /dev/vdb rw
31 30 0:31 / /data/my\\040journal rw shared:7 master:2 - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/data/x/y", "btrfs"),
        ("/data/my journal", "xfs"),
        ("/data/my journal/x", "xfs"),
        ("/database", "ext4"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_deepest_mount(
    monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: MOUNTS)
    assert file_system_of(Path(path)) == kind


def test_where_a_block_may_move_files_are_not_mapped_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, is_mapped in (("ext4", True), ("xfs", True), ("btrfs", False), ("", False)):
        monkeypatch.setattr(_mapped, "file_system_of", lambda _, kind=kind: kind)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "tidegate.store.journal"):
            assert can_map(tmp_path) is is_mapped
        assert len(caplog.records) == (0 if is_mapped else 1)


def test_a_system_without_mount_table_has_unknown_file_systems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert file_system_of(Path("/")) == ""
