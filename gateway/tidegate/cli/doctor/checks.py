"""What of a machine and a configuration is wrong, and what to change: rules on plain facts."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.cli.doctor.machine import Disk, Machine
from tidegate.config import DESCRIPTORS_RESERVED, BrokerConfig
from tidegate.spi import format_size

#: Since this kernel there is what the journal uses (io_uring with linked writes and syncs).
KERNEL_MIN: Final = (5, 6)
#: Share of the memory for all limits together.
_MEMORY_SHARE: Final = 0.8
#: What the interpreter and the processes beside it take.
_MEMORY_OWN: Final = 256 << 20
#: Files for the store to create: it needs far fewer.
_INODES_MIN: Final = 10_000
#: A clock before 2024 was never set.
_CLOCK_MIN: Final = 1_704_067_200
#: No disk that really keeps its data is faster, and a slower one satisfies nobody.
_SYNC_MIN_S: Final = 0.000_02
_SYNC_MAX_S: Final = 0.02

#: File systems on which synced data can vanish, or locks cannot be trusted.
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
        change = "pip install uvloop: it halves the processor time per message"
        yield Finding("python", State.ADVICE, f"{python} without uvloop", change)
    if machine.is_root:
        change = "run the gateway as its own user, which owns the data directory"
        yield Finding("user", State.ADVICE, "running as root", change)
    else:
        yield Finding("user", State.OK, "not running as root")
    yield _clock(machine)
    processors = f"{machine.processors:g}"
    if machine.processors < 2:
        change = (
            "give the gateway two cores: one for the event loop, one for writing, "
            "checkpoints and sinks"
        )
        yield Finding("processors", State.ADVICE, processors, change)
    else:
        yield Finding("processors", State.OK, processors)


def _kernel(machine: Machine) -> Finding:
    found = f"{machine.system} {machine.kernel}"
    if machine.system != "Linux":
        change = "run it on Linux: the journal types and the limits are tested nowhere else"
        return Finding("kernel", State.ADVICE, found, change)
    numbers = machine.kernel.split("-")[0].split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        return Finding("kernel", State.UNKNOWN, found)
    if tuple(map(int, numbers)) < KERNEL_MIN:
        change = 'use a newer kernel: journal_type = "ASYNCIO" needs io_uring'
        return Finding("kernel", State.ADVICE, found, change)
    return Finding("kernel", State.OK, found)


def _clock(machine: Machine) -> Finding:
    if machine.now < _CLOCK_MIN:
        change = "set the clock: message expiry, sessions and certificates depend on it"
        return Finding("clock", State.PROBLEM, "the clock shows a time before 2024", change)
    if machine.clock_is_set is None:
        return Finding(
            "clock", State.UNKNOWN, "the kernel does not report whether the clock is synchronized"
        )
    if machine.clock_is_set:
        return Finding("clock", State.OK, "the clock is synchronized")
    change = "run chrony or systemd-timesyncd: message expiry depends on the clock"
    return Finding("clock", State.ADVICE, "the clock is not synchronized", change)


def of_limits(machine: Machine, config: BrokerConfig) -> Iterator[Finding]:
    """Whether the machine has what the configuration promises."""
    yield _descriptors(machine, config)
    yield _backlog(machine, config)
    yield _memory(machine, config)


def _descriptors(machine: Machine, config: BrokerConfig) -> Finding:
    needed, hard = config.connections_max + DESCRIPTORS_RESERVED, machine.descriptors_hard
    if hard is None:
        return Finding("descriptors", State.OK, "unlimited")
    found = f"at most {hard}; broker.connections_max = {config.connections_max} needs {needed}"
    if hard < needed:
        change = (
            f"raise the hard limit to {needed} (LimitNOFILE= in the unit, ulimit -Hn), "
            f"or lower broker.connections_max to {max(1, hard - DESCRIPTORS_RESERVED)}"
        )
        return Finding("descriptors", State.PROBLEM, found, change)
    return Finding("descriptors", State.OK, found)


def _backlog(machine: Machine, config: BrokerConfig) -> Finding:
    backlog = machine.backlog_max
    if backlog is None:
        return Finding("backlog", State.UNKNOWN, "the kernel does not report it")
    if backlog < min(1024, config.connections_max):
        change = (
            "sysctl net.core.somaxconn=4096: otherwise connections are refused when many "
            "clients connect at once"
        )
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
        return Finding("memory", State.UNKNOWN, f"the limits allow {format_size(wanted)}")
    found = f"{_gib(machine.memory_bytes)}; all limits together allow {_gib(wanted)}"
    if unlimited:
        change = f"set broker.{unlimited[0]}: without it, clients can use up all memory"
        return Finding("memory", State.PROBLEM, found, change)
    if wanted > machine.memory_bytes:
        change = "lower broker.held_limit, broker.in_flight_limit or broker.unstored_memory_limit"
        return Finding("memory", State.PROBLEM, found, change)
    if wanted > machine.memory_bytes * _MEMORY_SHARE:
        change = "leave a fifth of the memory to the file system cache: lower broker.held_limit"
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
        what = f"{disk.path} is not writable for this user"
        change = f"create {directory} and give it to the gateway's user (mode 0700)"
        return Finding("data directory", State.PROBLEM, what, change)
    what = (
        str(directory)
        if disk.is_there
        else f"{directory} does not exist yet; the first start creates it"
    )
    return Finding("data directory", State.OK, what)


def _file_system(disk: Disk) -> Finding:
    name = disk.file_system
    if name is None:
        return Finding("file system", State.UNKNOWN, "unknown")
    if name in _FORGETS:
        change = (
            "put broker.data_directory on a disk: this file system is in memory and is "
            "lost when the machine restarts"
        )
        return Finding("file system", State.PROBLEM, name, change)
    if name in _ON_NETWORK:
        change = (
            "put broker.data_directory on a local disk: on this one every sync takes a "
            "network round trip, and the locks of a dead gateway may remain"
        )
        return Finding("file system", State.ADVICE, name, change)
    if name in _IN_LAYERS:
        change = (
            "mount a volume at broker.data_directory: this file system is deleted with the "
            "container"
        )
        return Finding("file system", State.ADVICE, name, change)
    return Finding("file system", State.OK, name)


def _room(disk: Disk, config: BrokerConfig) -> Finding:
    limit, free = config.disk_free_limit, disk.free_bytes
    found = f"{_gib(free)} free; broker.disk_free_limit reserves {format_size(limit)}"
    if free <= limit:
        change = (
            "free disk space or lower broker.disk_free_limit: otherwise every publish is refused"
        )
        return Finding("room", State.PROBLEM, found, change)
    if free < 4 * limit:
        change = "free disk space: publishes will soon be refused"
        return Finding("room", State.ADVICE, found, change)
    if disk.free_inodes is not None and disk.free_inodes < _INODES_MIN:
        change = "free some inodes: delete files, or use a file system with more inodes"
        return Finding("room", State.ADVICE, f"{disk.free_inodes} inodes free", change)
    return Finding("room", State.OK, found)


def _sync(seconds: float) -> Finding:
    found = f"a small write takes {seconds * 1000:.1f} ms to reach the disk"
    if seconds < _SYNC_MIN_S:
        change = (
            "check that this disk really keeps what it reports as written: without a "
            "cache that is lost in a power cut, no disk is this fast"
        )
        return Finding("sync", State.ADVICE, found, change)
    if seconds > _SYNC_MAX_S:
        change = "use a faster disk: every confirmation waits for one sync"
        return Finding("sync", State.ADVICE, found, change)
    return Finding("sync", State.OK, found)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
