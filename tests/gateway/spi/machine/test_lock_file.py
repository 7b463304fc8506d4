"""A lock file that several machines may share: who may take it, and what an owner learns that was away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.spi import StoreLockedError
from tidegate.spi.machine import lock_file
from tidegate.spi.machine.lock_file import LockFile

#: Of an owner that no test waits for, and whose keeper none waits for.
LONG = 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


class Clock:
    """In the place of the machine's."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lock_file, "now", lambda: made.now)
    monkeypatch.setattr(lock_file.time, "sleep", made.sleep)
    return made


def left_behind(path: Path, lease: float = 5.0, machine: str = "another-boot") -> bytes:
    """What the owner of *path* wrote that was killed on another machine."""
    owner = f"gateway=first|other.example|12345678|{machine}/pid:[1]/17/1234"
    text = f"gateway=first pid=17 host=other.example\nlease={lease:g} of={owner}\n".encode()
    path.write_bytes(text)
    return text


def test_only_one_has_it_and_the_other_is_told_who(path: Path) -> None:
    first, second = LockFile(path, lease_seconds=LONG), LockFile(path, lease_seconds=LONG)
    first.take("gateway=one")
    with pytest.raises(StoreLockedError) as caught:
        second.take("gateway=two")
    assert caught.value.owner.startswith(f"gateway=one pid={os.getpid()} host=")
    first.release()
    first.release()


def test_who_follows_an_owner_that_gave_it_back_does_not_wait(path: Path, clock: Clock) -> None:
    first, second = LockFile(path, lease_seconds=LONG), LockFile(path, lease_seconds=LONG)
    first.take("gateway=one")
    first.release()
    second.take("gateway=two")
    assert clock.slept == 0
    assert not second.has_followed_unseen
    second.check()
    second.release()


def test_who_follows_a_process_of_this_machine_that_was_killed_does_not_wait(
    path: Path, clock: Clock
) -> None:
    script = (
        "import os, sys; from pathlib import Path; from tidegate.spi.machine.lock_file import LockFile;"
        "LockFile(Path(sys.argv[1]), lease_seconds=3600).take('gateway=one'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert b"lease=3600 " in path.read_bytes()
    second = LockFile(path)
    second.take("gateway=two")
    assert clock.slept == 0
    assert not second.has_followed_unseen
    second.release()


def test_who_follows_an_owner_on_another_machine_waits_for_its_lease(
    path: Path, clock: Clock
) -> None:
    left_behind(path, lease=5.0)
    second = LockFile(path, lease_seconds=LONG)
    second.take("gateway=two")
    assert clock.slept == pytest.approx(5.0 * 1.01)
    assert second.has_followed_unseen
    assert path.read_bytes().startswith(f"gateway=two pid={os.getpid()} ".encode())
    second.release()


def test_the_time_that_it_waited_for_the_lock_counts(path: Path, clock: Clock) -> None:
    holder, second = LockFile(path), LockFile(path)
    holder.take("gateway=one")
    left_behind(path, lease=5.0)
    with pytest.raises(StoreLockedError):
        second.take("gateway=two")
    clock.now += 4.0
    os.close(holder._fd)  # pyright: ignore[reportPrivateUsage] - without a word in the file
    second.take("gateway=two")
    assert clock.slept == pytest.approx(5.0 * 1.01 - 4.0)
    second.release()


def test_an_owner_that_shows_a_sign_of_life_keeps_it(path: Path, clock: Clock) -> None:
    """The file system gave its lock away, but it is there."""
    text = left_behind(path, lease=5.0)
    second = LockFile(path)
    clock.on_sleep = lambda: os.utime(path, (clock.now, clock.now))
    with pytest.raises(StoreLockedError, match="gateway=first pid=17"):
        second.take("gateway=two")
    assert path.read_bytes() == text
    clock.on_sleep = lambda: None
    second.take("gateway=two")  # it held no lock, and it is silent now
    second.release()


def test_a_lock_file_that_is_replaced_while_somebody_waits_is_not_taken(
    path: Path, clock: Clock
) -> None:
    left_behind(path, lease=5.0)

    def replace() -> None:
        path.unlink()
        path.touch()

    clock.on_sleep = replace
    with pytest.raises(StoreLockedError):
        LockFile(path).take("gateway=two")


@pytest.mark.parametrize(
    "text", [b"", b"gateway=x pid=1 host=h\n", b"x\nlease=", b"x\nlease=soon of=y\n", b"\xff\n\xff"]
)
def test_an_owner_without_a_lease_is_not_waited_for(path: Path, clock: Clock, text: bytes) -> None:
    path.write_bytes(text)
    second = LockFile(path, lease_seconds=LONG)
    second.take("gateway=two")
    assert clock.slept == 0
    second.release()


def test_an_owner_that_another_one_followed_learns_of_it(path: Path) -> None:
    told: list[str] = []
    first = LockFile(path, lease_seconds=LONG)
    first.take("gateway=one")
    first.keep(LONG, told.append)
    first.check()
    left_behind(path)
    for _ in range(2):
        with pytest.raises(StoreLockedError, match="another gateway has taken it: 'gateway=first"):
            first.check()
    assert len(told) == 1
    text = path.read_bytes()
    first.release()
    assert path.read_bytes() == text, "it is not this owner's any more"


def test_an_owner_whose_lock_file_is_gone_learns_of_it(path: Path) -> None:
    first = LockFile(path, lease_seconds=LONG)
    first.take("gateway=one")
    path.unlink()
    with pytest.raises(StoreLockedError, match="was removed"):
        first.check()
    first.release()


def test_an_owner_that_was_away_for_too_long_gives_up_though_nobody_came(
    path: Path, clock: Clock
) -> None:
    told: list[str] = []
    first = LockFile(path, lease_seconds=5.0)
    first.take("gateway=one")
    first.keep(LONG, told.append)
    clock.now += 4.9
    first.check()
    clock.now += 2.1
    with pytest.raises(
        StoreLockedError,
        match=r"suspended.* for 7\.0 s, which is more than lock_expiration \(5 s\)",
    ):
        first.check()
    clock.now -= 7.0  # nor does it come back
    with pytest.raises(StoreLockedError):
        first.check()
    assert len(told) == 1
    first.release()


def test_a_keeper_shows_signs_of_life_and_tells_the_loss(path: Path) -> None:
    told = threading.Event()
    first, second = LockFile(path, lease_seconds=LONG), LockFile(path)
    first.take("gateway=one")
    before = path.stat().st_mtime
    first.keep(0.005, lambda _: told.set())
    while path.stat().st_mtime < before + 3:  # the test's own limit ends it
        pass
    with pytest.raises(StoreLockedError):
        second.take("gateway=two")
    left_behind(path)
    assert told.wait(60)
    first.release()


def test_what_cannot_be_told_is_no_loss(path: Path) -> None:
    told: list[str] = []

    def refuse(_call: Callable[[], int]) -> int:
        raise OSError(5, "the disk does not answer")

    first = LockFile(path, lease_seconds=LONG, opened=refuse)
    first.take("gateway=one")
    first.keep(LONG, told.append)
    with pytest.raises(OSError, match="does not answer"):
        first.check()
    assert not told
    first.release()
