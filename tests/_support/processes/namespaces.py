"""Machines on one network, each a network namespace, joined by a router whose links a test cuts, slows and mends.

A namespace has no name and no process: this process holds it by a descriptor, so nothing is left behind however it
ends. What runs in one is started by a thread that has entered it (``Host.inside``). The router drops packets on their
way, so nobody is told: to both ends a cut link is silence, as where a cable is pulled. That needs root.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

T = TypeVar("T")

_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET of <sched.h>
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """A network of its own, with nothing but loopback."""

    def __init__(self) -> None:
        with ThreadPoolExecutor(1) as thread:
            self._descriptor = thread.submit(_made).result()
        self.run("ip", "link", "set", "lo", "up")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def inside(self, call: Callable[[], T]) -> T:
        """What *call* returns, called by a thread that is in there; processes that it starts stay there."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._enter).result()
            return thread.submit(call).result()

    def run(self, *command: str) -> None:
        self.inside(lambda: _run(command))

    def close(self) -> None:
        os.close(self._descriptor)

    def _enter(self) -> None:
        if _libc.setns(self._descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")


def _made() -> int:
    if _libc.unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "unshare: network namespaces are made by root")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Host(Namespace):
    """One machine. Attributes: address."""

    def __init__(self, router: Namespace, number: int) -> None:
        super().__init__()
        self.address = f"10.77.{number}.2"
        self.link = f"to{number}"
        router.run(
            "ip",
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.path,
        )
        router.run("ip", "address", "add", f"10.77.{number}.1/24", "dev", self.link)
        router.run("ip", "link", "set", self.link, "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", f"10.77.{number}.1")

    def socket(self) -> socket.socket:
        """One of this machine, for whoever wants to speak from there; it does not block."""
        made = self.inside(socket.socket)
        made.setblocking(False)
        return made


class Network:
    """Machines that all reach each other, until a test says otherwise. A context manager."""

    def __init__(self, hosts: int) -> None:
        self._router = Namespace()
        self._router.inside(lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        self.hosts = [Host(self._router, number) for number in range(1, hosts + 1)]
        self._slow: list[Host] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.hosts, self._router):
            each.close()

    def drop(self, sender: Host, receiver: Host, *, share: float = 1.0) -> None:
        """Nothing that *sender* sends arrives at *receiver*, or only some of it does."""
        some = (
            ["-m", "statistic", "--mode", "random", "--probability", f"{share}"]
            if share < 1.0
            else []
        )
        self._router.run(
            "iptables",
            "-A",
            "FORWARD",
            "-s",
            sender.address,
            "-d",
            receiver.address,
            *some,
            "-j",
            "DROP",
        )

    def cut(self, one: Host, *others: Host) -> None:
        """Nothing goes between *one* and *others*, in neither direction."""
        for other in others:
            self.drop(one, other)
            self.drop(other, one)

    def slow_down(self, host: Host, rate: str) -> None:
        """What goes to *host* does so at *rate*; what would wait for longer than 0.4 s is lost."""
        self._slow.append(host)
        self._router.run(
            "tc", "qdisc", "add", "dev", host.link, "root", "tbf", "rate", rate, "burst", "4kb", "latency", "400ms"
        )  # fmt: skip

    def restore(self) -> None:
        """All links are as they were."""
        self._router.run("iptables", "-F", "FORWARD")
        for host in self._slow:
            self._router.run("tc", "qdisc", "del", "dev", host.link, "root")
        self._slow.clear()
