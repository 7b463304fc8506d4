"""The real directory and the memory storage behave alike."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tidegate.spi import StoreLockedError
from tidegate_store_journal import DirectoryStorage, MemoryStorage, Storage
from tidegate_store_journal.log.storage import DirectoryFile, write_atomically


@pytest.fixture(params=["directory", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made = DirectoryStorage(tmp_path / "j") if request.param == "directory" else MemoryStorage()
    made.lock("test")
    return made


def test_bytes_come_back_from_where_they_were_written(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.pwritev([b"ab", b"", b"cd"], 3)
    assert file.pread(10, 0) == b"\0\0\0abcd"
    assert file.pread(2, 4) == b"bc"
    assert file.pread(5, 100) == b""
    file.datasync()
    again = storage.open("a")
    assert again.pread(4, 3) == b"abcd"
    assert again.length == 7
    file.close()
    file.close()


def test_more_buffers_than_one_call_takes_are_all_written(storage: Storage) -> None:
    file = storage.open("a", create=True)
    buffers = [b"%04d" % number for number in range(3000)]
    file.pwritev(buffers, 5)
    assert file.pread(20_000, 5) == b"".join(buffers)
    file.close()


def test_a_preallocated_file_reads_as_zeros(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.preallocate(10_000)
    assert file.length == 10_000
    assert file.pread(20_000, 0) == bytes(10_000)
    file.pwritev([b"x"], 9_999)
    file.preallocate(5_000)
    assert file.length == 10_000
    file.close()


def test_a_mapping_is_the_file_itself_and_ends_with_it(tmp_path: Path) -> None:
    page = mmap.ALLOCATIONGRANULARITY
    file = DirectoryStorage(tmp_path).open("a", create=True)
    assert isinstance(file, DirectoryFile)
    assert file.map(0, page) is None, "an empty file has no block"
    file.preallocate(2 * page + 10)
    mapping = file.map(page, 1 << 30)
    assert mapping is not None
    assert len(mapping) == page + 10
    mapping[0:3] = b"abc"
    assert file.pread(3, page) == b"abc"
    file.datasync()
    mapping.close()
    assert file.map(4 * page, page) is None, "nothing is there"
    file.close()
    assert (tmp_path / "a").read_bytes()[page : page + 3] == b"abc"


def test_a_file_with_holes_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    os.truncate(tmp_path / "a", 1 << 20)
    file = DirectoryStorage(tmp_path).open("a")
    assert isinstance(file, DirectoryFile)
    assert file.map(0, 1 << 20) is None
    file.close()


def test_names_can_be_listed_renamed_and_removed(storage: Storage) -> None:
    storage.open("a", create=True).close()
    other = storage.open("b", create=True)
    other.pwritev([b"other"], 0)
    other.close()
    storage.rename("b", "a")
    assert "b" not in storage.list()
    file = storage.open("a")
    assert file.pread(5, 0) == b"other"
    file.close()
    storage.unlink("a")
    storage.unlink("a")
    storage.sync_directory()
    assert "a" not in storage.list()
    with pytest.raises(FileNotFoundError):
        storage.open("a")
    assert storage.free_bytes() > 0


def test_creating_a_file_empties_an_old_one(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.pwritev([b"old"], 0)
    file.close()
    file = storage.open("a", create=True)
    assert file.length == 0
    file.close()


def test_an_atomic_write_replaces_the_whole_file(storage: Storage) -> None:
    write_atomically(storage, "a", b"first version")
    write_atomically(storage, "a", b"second")
    file = storage.open("a")
    assert file.pread(100, 0) == b"second"
    file.close()
    assert "a.tmp" not in storage.list()


def test_only_one_process_owns_the_directory_and_the_other_is_told_who(tmp_path: Path) -> None:
    first, second = DirectoryStorage(tmp_path / "j"), DirectoryStorage(tmp_path / "j")
    first.lock("gateway=one")
    with pytest.raises(StoreLockedError) as caught:
        second.lock("gateway=two")
    assert f"gateway=one pid={os.getpid()} host=" in caught.value.owner
    assert str(tmp_path) in str(caught.value)
    first.unlock()
    first.unlock()
    second.lock("gateway=two")
    second.unlock()


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev, real_pwrite = os.pwritev, os.pwrite

    def short_pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return real_pwritev(fd, [b"".join(buffers)[:3]], offset)

    def short_pwrite(fd: int, data: bytes, offset: int) -> int:
        return real_pwrite(fd, bytes(data)[:2], offset)

    storage = DirectoryStorage(tmp_path)
    file = storage.open("a", create=True)
    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    file.pwritev([b"abcde", b"fgh"], 1)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="wrote nothing"):
        file.pwritev([b"abcde"], 1)
    monkeypatch.undo()
    assert file.pread(10, 1) == b"abcdefgh"
    file.close()


def test_a_file_system_that_cannot_reserve_gets_a_file_of_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = DirectoryStorage(tmp_path).open("a", create=True)
    file.preallocate(5000)
    assert file.length == 5000
    file.close()


def test_memory_is_not_durable_and_a_directory_is(tmp_path: Path) -> None:
    assert DirectoryStorage(tmp_path).durable
    assert DirectoryStorage(tmp_path).metadata_directory == tmp_path / "metadata"
    assert not MemoryStorage().durable
    assert MemoryStorage().metadata_directory is None
    assert MemoryStorage().describe("x") == "memory:x"


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[DirectoryStorage]:
    """One in the directory `j`, with a file `a`."""
    storage = DirectoryStorage(tmp_path / "j")
    storage.lock("x")
    file = storage.open("a", create=True)
    file.pwritev([b"bytes"], 0)
    file.close()
    yield storage
    storage.unlock()


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_file_is_moved_out_into_a_directory_that_is_made(
    tmp_path: Path, locked: DirectoryStorage, is_absolute: bool
) -> None:
    target = tmp_path / "old" if is_absolute else tmp_path / "j" / "old" / "logs"
    locked.rename("a", f"{target if is_absolute else 'old/logs'}/a")
    assert (target / "a").read_bytes() == b"bytes"
    assert "a" not in locked.list()


def test_a_file_is_copied_out_to_another_file_system_and_never_lost(
    tmp_path: Path, locked: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace
    steps: list[str] = []

    def replace(source: Path, target: Path) -> None:
        steps.append(f"{source.name} > {target.name}")
        if source.parent != target.parent:
            raise OSError(errno.EXDEV, "another file system")
        assert (tmp_path / "j" / "a").exists()
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    locked.rename("a", "old/a")
    assert steps == ["a > a", "a.tmp > a"]
    assert (tmp_path / "j" / "old" / "a").read_bytes() == b"bytes"
    assert [path.name for path in (tmp_path / "j" / "old").iterdir()] == ["a"]
    assert "a" not in locked.list()


def test_a_file_that_cannot_be_moved_out_stays(tmp_path: Path, locked: DirectoryStorage) -> None:
    (tmp_path / "j" / "old").write_text("a file is in the way")
    with pytest.raises(OSError, match="old"):
        locked.rename("a", "old/a")
    assert "a" in locked.list()


def test_a_synced_descriptor_writes_the_same_file_whatever_its_name(tmp_path: Path) -> None:
    directory = DirectoryStorage(tmp_path)
    file = directory.open("a", create=True)
    assert isinstance(file, DirectoryFile)
    directory.rename("a", "b")
    fd = file.synced_fileno()
    assert fd == file.synced_fileno() != file.fileno()
    os.pwrite(fd, b"data", 0)
    assert (tmp_path / "b").read_bytes() == b"data"
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
