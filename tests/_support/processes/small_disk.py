"""A gateway with a small file system of its own below one directory, which a test fills and frees.

The file system is a tmpfs in a mount namespace of the gateway's, so it goes with it; the test reaches it through
``/proc/PID/root``. That needs the right to mount: root, or a kernel that lets users have namespaces
(``unshare --user --map-root-user``).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from gateway_process import GatewayProcess

_UNSHARE = ["unshare", "--mount"]
if os.geteuid() != 0:
    _UNSHARE += ["--user", "--map-root-user"]


def need_mounts() -> None:
    """Skip the test for a user who may not make a mount namespace; .ci/run takes a skip as failure."""
    if subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this user may not make a mount namespace")


class SmallDiskGateway(GatewayProcess):
    """*small* below its directory is a tmpfs of *size_mb*."""

    small = "data"
    size_mb = 192

    def command(self) -> list[str]:
        directory = self.directory / self.small
        directory.mkdir(exist_ok=True)
        script = 'mount -t tmpfs -o size=$1m tmpfs "$2" && shift 2 && exec "$@"'
        arguments = [str(self.size_mb), str(directory), *super().command()]
        return [*_UNSHARE, "sh", "-c", script, "sh", *arguments]

    def free_bytes(self) -> int:
        status = os.statvfs(self.disk)
        return status.f_bavail * status.f_frsize

    @property
    def disk(self) -> Path:
        """The small file system as the gateway sees it."""
        return Path(f"/proc/{self.pid}/root{self.directory}/{self.small}")

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.disk / "filler").open("ab", buffering=0) as file:
            block = bytes(1 << 20)
            size = len(block)
            while size:
                try:
                    file.write(block[:size])
                except OSError:
                    size //= 2

    def free(self) -> None:
        (self.disk / "filler").unlink()

    def leave(self, size_bytes: int) -> None:
        """Make as much room as that."""
        filler = self.disk / "filler"
        os.truncate(filler, filler.stat().st_size - size_bytes)
