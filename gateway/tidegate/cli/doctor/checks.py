"""What of a machine and a configuration is wrong, and what to change: rules on plain facts."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.cli.doctor.machine import Disk, Machine
from tidegate.config import DESCRIPTORS_RESERVED, BrokerConfig
from tidegate.spi import format_size

#: Kernels from here on have what the journal uses (io_uring with linked writes and syncs).
KERNEL_MIN: Final = (5, 6)
#: Of the memory: all limits together.
_MEMORY_SHARE: Final = 0.8
#: What the interpreter and what runs beside it take.
_MEMORY_OWN: Final = 256 << 20
#: Files that the store makes: far fewer are needed.
_INODES_MIN: Final = 10_000
#: A clock before 2024 was never set.
_CLOCK_MIN: Final = 1_704_067_200
#: No disk that keeps what it is given is quicker, and with a slower one nobody is happy.
_SYNC_MIN_S: Final = 0.000_02
_SYNC_MAX_S: Final = 0.02

#: File systems from which what was synced can vanish, or on which locks are not to be trusted.
_FORGETS: Final = frozenset({"tmpfs", "ramfs"})
_ON_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.glusterfs", "ceph", "lustre"}
)
_IN_LAYERS: Final = frozenset({"overlay", "aufs"})


class State(enum.Enum):
    """How something is. ADVICE: it works, and could be better; PROBLEM: it will cause trouble."""

    OK = "ok"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at. Attributes: found: how it is; change: what to do, "" when nothing is to be done."""

    check: str
    state: State
    found: str
    change: str = ""


def of_machine(machine: Machine) -> Iterator[Finding]:
    """What does not depend on the configuration."""
    yield _kernel(machine)
    python = ".".join(map(str, machine.python))
    if machine.has_uvloop:
        yield Finding("python", State.OK, f"{python} with uvloop")
    else:
        change = "pip install uvloop: a message costs half of the processor's time with it"
        yield Finding("python", State.ADVICE, f"{python} without uvloop", change)
    if machine.is_root:
        change = "run the gateway as a user of its own, who owns the data directory"
        yield Finding("user", State.ADVICE, "this is root", change)
    else:
        yield Finding("user", State.OK, "not root")
    yield _clock(machine)
    processors = f"{machine.processors:g}"
    if machine.processors < 2:
        change = "give it two: one for the event loop, one for writing, checkpoints and sinks"
        yield Finding("processors", State.ADVICE, processors, change)
    else:
        yield Finding("processors", State.OK, processors)


def _kernel(machine: Machine) -> Finding:
    found = f"{machine.system} {machine.kernel}"
    if machine.system != "Linux":
        change = "run it on Linux: only there every journal type and every limit is tried"
        return Finding("kernel", State.ADVICE, found, change)
    numbers = machine.kernel.split("-")[0].split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        return Finding("kernel", State.UNKNOWN, found)
    if tuple(map(int, numbers)) < KERNEL_MIN:
        change = 'a newer kernel has io_uring, which journal_type = "ASYNCIO" writes with'
        return Finding("kernel", State.ADVICE, found, change)
    return Finding("kernel", State.OK, found)


def _clock(machine: Machine) -> Finding:
    if machine.now < _CLOCK_MIN:
        change = "set the clock: expiry, sessions and certificates go by it"
        return Finding("clock", State.PROBLEM, "it shows a time before 2024", change)
    if machine.clock_is_set is None:
        return Finding("clock", State.UNKNOWN, "the kernel does not say whether anything keeps it")
    if machine.clock_is_set:
        return Finding("clock", State.OK, "it is kept right")
    change = "run chrony or systemd-timesyncd: messages expire by the clock"
    return Finding("clock", State.ADVICE, "nothing keeps it right", change)


def of_limits(machine: Machine, config: BrokerConfig) -> Iterator[Finding]:
    """Whether the machine has what the configuration promises."""
    yield _descriptors(machine, config)
    yield _backlog(machine, config)
    yield _memory(machine, config)


def _descriptors(machine: Machine, config: BrokerConfig) -> Finding:
    needed, hard = config.connections_max + DESCRIPTORS_RESERVED, machine.descriptors_hard
    if hard is None:
        return Finding("descriptors", State.OK, "unlimited")
    found = (
        f"at most {hard}, of which broker.connections_max = {config.connections_max} needs {needed}"
    )
    if hard < needed:
        change = (
            f"raise the hard limit to {needed} (LimitNOFILE= of the unit, ulimit -Hn), or lower"
            f" broker.connections_max to {max(1, hard - DESCRIPTORS_RESERVED)}"
        )
        return Finding("descriptors", State.PROBLEM, found, change)
    return Finding("descriptors", State.OK, found)


def _backlog(machine: Machine, config: BrokerConfig) -> Finding:
    backlog = machine.backlog_max
    if backlog is None:
        return Finding("backlog", State.UNKNOWN, "the kernel does not say")
    if backlog < min(1024, config.connections_max):
        change = "sysctl net.core.somaxconn=4096: many who connect at once are turned away else"
        return Finding("backlog", State.ADVICE, f"{backlog} connections", change)
    return Finding("backlog", State.OK, f"{backlog} connections")


def _memory(machine: Machine, config: BrokerConfig) -> Finding:
    limits = {
        name: getattr(config, name)
        for name in (
            "held_limit",
            "in_flight_limit",
            "unstored_memory_limit",
            "retained_limit",
            "id_cache_limit",
            "cursor_memory_limit",
            "pending_write_limit",
        )
    }
    unlimited = [name for name, limit in limits.items() if not limit]
    # Retained messages and duplicate ids are part of what is held.
    of_held = ("retained_limit", "id_cache_limit")
    wanted = sum(limit for name, limit in limits.items() if name not in of_held) + _MEMORY_OWN
    if machine.memory_bytes is None:
        return Finding("memory", State.UNKNOWN, f"limits allow {format_size(wanted)}")
    found = f"{_gib(machine.memory_bytes)}, of which all limits together allow {_gib(wanted)}"
    if unlimited:
        change = f"set broker.{unlimited[0]}: without it clients can take all memory"
        return Finding("memory", State.PROBLEM, found, change)
    if wanted > machine.memory_bytes:
        change = "lower broker.held_limit, broker.in_flight_limit or broker.unstored_memory_limit"
        return Finding("memory", State.PROBLEM, found, change)
    if wanted > machine.memory_bytes * _MEMORY_SHARE:
        change = "leave a fifth to the file system's cache: lower broker.held_limit"
        return Finding("memory", State.ADVICE, found, change)
    return Finding("memory", State.OK, found)


def of_disk(disk: Disk, config: BrokerConfig) -> Iterator[Finding]:
    """Where the data is, or will be."""
    yield _directory(disk, config)
    yield _file_system(disk)
    yield _room(disk, config)
    if disk.sync_s is not None:
        yield _sync(disk.sync_s)


def _directory(disk: Disk, config: BrokerConfig) -> Finding:
    directory = config.data_directory
    if not disk.is_writable:
        what = f"{disk.path} cannot be written by this user"
        change = f"make {directory} and give it to the gateway's user (mode 0700)"
        return Finding("data directory", State.PROBLEM, what, change)
    what = (
        str(directory)
        if disk.is_there
        else f"{directory} is not there yet; the first start makes it"
    )
    return Finding("data directory", State.OK, what)


def _file_system(disk: Disk) -> Finding:
    name = disk.file_system
    if name is None:
        return Finding("file system", State.UNKNOWN, "nobody says of what type it is")
    if name in _FORGETS:
        change = "put broker.data_directory on a disk: this is memory, and gone with the machine"
        return Finding("file system", State.PROBLEM, name, change)
    if name in _ON_NETWORK:
        change = (
            "put broker.data_directory on a disk of this machine: a sync takes a round trip here,"
            " and locks of a dead gateway may stay"
        )
        return Finding("file system", State.ADVICE, name, change)
    if name in _IN_LAYERS:
        change = "mount a volume at broker.data_directory: this is gone with the container"
        return Finding("file system", State.ADVICE, name, change)
    return Finding("file system", State.OK, name)


def _room(disk: Disk, config: BrokerConfig) -> Finding:
    limit, free = config.disk_free_limit, disk.free_bytes
    found = f"{_gib(free)} free, of which broker.disk_free_limit keeps {format_size(limit)}"
    if free <= limit:
        change = "make room, or lower broker.disk_free_limit: every publish would be refused"
        return Finding("room", State.PROBLEM, found, change)
    if free < 4 * limit:
        change = "make room: publishes are refused soon"
        return Finding("room", State.ADVICE, found, change)
    if disk.free_inodes is not None and disk.free_inodes < _INODES_MIN:
        change = "make room for more files"
        return Finding("room", State.ADVICE, f"{disk.free_inodes} more files", change)
    return Finding("room", State.OK, found)


def _sync(seconds: float) -> Finding:
    found = f"a small write is on the disk after {seconds * 1000:.2g} ms"
    if seconds < _SYNC_MIN_S:
        change = (
            "ask whether this disk keeps what it says to have written: no disk is so quick without"
            " a cache that a power cut empties"
        )
        return Finding("sync", State.ADVICE, found, change)
    if seconds > _SYNC_MAX_S:
        change = "use a quicker disk: each confirmation waits for one sync"
        return Finding("sync", State.ADVICE, found, change)
    return Finding("sync", State.OK, found)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
