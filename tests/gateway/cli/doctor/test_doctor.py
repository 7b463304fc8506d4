"""`tidegate doctor`: what it makes of a machine, and that it looks at this one."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli import main
from tidegate.cli._exit import ExitCode
from tidegate.cli.doctor.checks import Finding, State, of_disk, of_limits, of_machine
from tidegate.cli.doctor.machine import Disk, Machine, disk_of, file_system_of, this_machine
from tidegate.config import DESCRIPTORS_RESERVED, BrokerConfig
from tidegate.testing.embedded import EmbeddedGateway

GIB = 1 << 30
GOOD = Machine(
    system="Linux",
    kernel="6.1.0-18-amd64",
    python=(3, 12, 1),
    is_root=False,
    processors=4,
    memory_bytes=16 * GIB,
    descriptors_soft=1024,
    descriptors_hard=1 << 20,
    backlog_max=4096,
    clock_is_set=True,
    now=1_800_000_000,
    has_uvloop=True,
)
DISK = Disk(Path("/data"), True, True, "ext4", 100 * GIB, 1_000_000, 0.001)
CONFIG = BrokerConfig(data_directory=Path("/data"))


def by_check(machine: Machine = GOOD, disk: Disk = DISK, **config: Any) -> dict[str, Finding]:
    broker = replace(CONFIG, **config)
    found = [*of_machine(machine), *of_limits(machine, broker), *of_disk(disk, broker)]
    assert len({item.check for item in found}) == len(found)
    for item in found:
        assert bool(item.change) is (item.state in (State.ADVICE, State.PROBLEM)), item
    return {item.check: item for item in found}


def test_of_a_good_machine_nothing_is_to_be_changed() -> None:
    assert {item.state for item in by_check().values()} == {State.OK}


@pytest.mark.parametrize(
    ("check", "changed", "state"),
    [
        ("kernel", {"kernel": "5.4.0-1"}, State.ADVICE),
        ("kernel", {"kernel": "strange"}, State.UNKNOWN),
        ("kernel", {"system": "Darwin", "kernel": "23.1"}, State.ADVICE),
        ("python", {"has_uvloop": False}, State.ADVICE),
        ("user", {"is_root": True}, State.ADVICE),
        ("processors", {"processors": 1.5}, State.ADVICE),
        ("clock", {"clock_is_set": False}, State.ADVICE),
        ("clock", {"clock_is_set": None}, State.UNKNOWN),
        ("clock", {"now": 1_000_000}, State.PROBLEM),
        ("descriptors", {"descriptors_hard": 1024}, State.PROBLEM),
        ("descriptors", {"descriptors_hard": None}, State.OK),
        ("backlog", {"backlog_max": 128}, State.ADVICE),
        ("backlog", {"backlog_max": None}, State.UNKNOWN),
        ("memory", {"memory_bytes": GIB}, State.PROBLEM),
        ("memory", {"memory_bytes": None}, State.UNKNOWN),
    ],
)
def test_what_a_machine_lacks_is_found(check: str, changed: dict[str, Any], state: State) -> None:
    found = by_check(replace(GOOD, **changed))
    assert found[check].state is state
    assert {item.state for name, item in found.items() if name != check} == {State.OK}


@pytest.mark.parametrize(
    ("check", "changed", "state"),
    [
        ("data directory", {"is_writable": False, "sync_s": None}, State.PROBLEM),
        ("data directory", {"is_there": False, "sync_s": None}, State.OK),
        ("file system", {"file_system": "tmpfs"}, State.PROBLEM),
        ("file system", {"file_system": "nfs4"}, State.ADVICE),
        ("file system", {"file_system": "overlay"}, State.ADVICE),
        ("file system", {"file_system": None}, State.UNKNOWN),
        ("room", {"free_bytes": 50 << 20}, State.PROBLEM),
        ("room", {"free_bytes": 100 << 20}, State.ADVICE),
        ("room", {"free_inodes": 10}, State.ADVICE),
        ("room", {"free_inodes": None}, State.OK),
        ("sync", {"sync_s": 0.000_001}, State.ADVICE),
        ("sync", {"sync_s": 0.1}, State.ADVICE),
    ],
)
def test_what_is_wrong_with_a_disk_is_found(
    check: str, changed: dict[str, Any], state: State
) -> None:
    found = by_check(disk=replace(DISK, **changed))
    assert found[check].state is state
    assert {item.state for name, item in found.items() if name != check} == {State.OK}


def test_the_limits_of_the_configuration_are_compared_with_the_machine() -> None:
    few = replace(GOOD, descriptors_hard=2048)
    found = by_check(few)["descriptors"]
    assert str(CONFIG.connections_max + DESCRIPTORS_RESERVED) in found.change
    assert str(2048 - DESCRIPTORS_RESERVED) in found.change
    assert by_check(few, connections_max=1000)["descriptors"].state is State.OK
    assert by_check(held_limit=0)["memory"].state is State.PROBLEM
    assert "broker.held_limit" in by_check(held_limit=0)["memory"].change
    assert by_check(replace(GOOD, memory_bytes=11 * GIB // 4))["memory"].state is State.ADVICE
    large = by_check(replace(GOOD, memory_bytes=3 * GIB), held_limit=4 * GIB)
    assert large["memory"].state is State.PROBLEM


def test_the_nearest_mount_above_says_of_what_type_the_file_system_is() -> None:
    mounts = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:5 / /proc rw shared:1 - proc proc rw",
        r"3 1 0:6 / /with\040space rw - xfs /dev/sdb rw",
        "4 1 0:7 / /proc/x rw - tmpfs tmpfs rw",
        "5 1 0:8 / /proc/x rw - nfs4 host:/x rw",
        "no line of that kind",
    ]
    assert file_system_of(Path("/var/lib"), mounts) == "ext4"
    assert file_system_of(Path("/proc"), mounts) == "proc"
    assert file_system_of(Path("/procession"), mounts) == "ext4"
    assert file_system_of(Path("/with space/a"), mounts) == "xfs"
    assert file_system_of(Path("/proc/x/y"), mounts) == "nfs4"
    assert file_system_of(Path("/proc"), []) is None


def test_this_machine_and_this_disk_are_looked_at_and_nothing_is_left(tmp_path: Path) -> None:
    machine, disk = this_machine(), disk_of(tmp_path)
    assert machine.processors > 0
    assert machine.memory_bytes is None or machine.memory_bytes > 1 << 20
    assert (disk.path, disk.is_there, disk.is_writable) == (tmp_path, True, True)
    assert disk.free_bytes > 0
    assert disk.sync_s is not None
    assert disk.sync_s > 0
    above = disk_of(tmp_path / "a" / "b")
    assert (above.path, above.is_there, above.sync_s) == (tmp_path, False, None)
    assert list(tmp_path.iterdir()) == []


def findings(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *arguments])
    return code, {item["check"]: item for item in json.loads(capsys.readouterr().out)}


async def test_it_works_with_a_gateway_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tidegate.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(
            f'[broker]\ndata_directory = "{tmp_path}/data"\n[[listeners]]\nprotocol = "stomp"\n'
            f'bind = "127.0.0.1:{port}"\n'
        )
        code, found = await asyncio.to_thread(findings, capsys, "--config", str(config))
        assert code == ExitCode.UNEXPECTED
        assert found[f"port {port}"]["state"] == "problem"
        assert found["gateway"]["found"] == "not running"
        assert found["configuration"]["state"] == "ok"
        assert not (tmp_path / "data").exists()
        async with EmbeddedGateway(data_directory=tmp_path / "data"):
            _, found = await asyncio.to_thread(findings, capsys, "--config", str(config))
            assert found["gateway"]["found"] == "running"
            assert f"port {port}" not in found
            assert found["privacy"]["state"] == "ok"


def test_a_wrong_configuration_is_a_problem_and_the_machine_is_looked_at_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text("[broker]\nnonsense = 1\n")
    code, found = findings(capsys, "--config", str(config))
    assert code == ExitCode.UNEXPECTED
    assert found["configuration"]["state"] == "problem"
    assert "nonsense" in found["configuration"]["found"]
    assert "kernel" in found


def test_people_read_problems_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "tidegate.toml"
    config.write_text("[broker]\nnonsense = 1\n")
    assert main(["doctor", "--config", str(config)]) == ExitCode.UNEXPECTED
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[2].split()[:2] == ["configuration", "problem"]
