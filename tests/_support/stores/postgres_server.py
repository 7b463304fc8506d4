"""A throw-away PostgreSQL on a free loopback port, run by a user that is not root."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from free_ports import free_port

#: How long a server may take to start or stop; on a busy machine recovery takes seconds.
SERVER_SECONDS = 60.0

NEEDED = ("initdb", "postgres", "createdb", "pg_isready")


@functools.cache
def binaries() -> Path | None:
    """The folder of initdb and postgres; None when there is no server here."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).parent] if found else []
    for folder in folders:
        if all((folder / name).exists() for name in NEEDED):
            return folder
    return None


def _program(name: str) -> str:
    folder = binaries()
    assert folder is not None, "no PostgreSQL server here"
    return str(folder / name)


class PostgresServer:
    """One server with a data directory of its own, which listens on *address*. A context manager.

    Attributes: port; directory; password: of the users ``tidegate`` and ``scram_user``.
    """

    #: Proves itself as users of a server do by default. The driver computes 4096 hashes in Python for
    #: it, for each connection, so that the tests that open hundreds of stores take ``tidegate``.
    scram_user = "tidegate_scram"

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.address = address
        self.port = free_port()
        self.password = "pg-secret-5eCr3t"
        # Not below pytest's directory: only its owner may enter that, and the server is another.
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
        self._process: Any = None

    @property
    def password_file(self) -> Path:
        """A file with the password, as an operator would make it."""
        return self.directory / "password"

    @property
    def url(self) -> str:
        """Of the database, without user and password."""
        return f"postgresql://{self.address}:{self.port}/tidegate"

    def __enter__(self) -> Self:
        try:
            self._initialize()
            self.start()
            self._run("createdb", "-h", self.address, "-p", str(self.port), "tidegate")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)  # nobody will read what a shutdown would write
        shutil.rmtree(self.directory, ignore_errors=True)

    def _as_user(self) -> dict[str, Any]:
        """initdb and postgres refuse to run as root."""
        if os.geteuid() != 0:
            return {}
        for name in ("postgres", "nobody"):
            try:
                user = pwd.getpwnam(name)
            except KeyError:
                continue
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        raise RuntimeError("initdb does not run as root, and there is no user to run it as")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{binaries()}:/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.directory),
            "PGUSER": "tidegate",
            "PGPASSWORD": self.password,
        }

    def _run(self, *command: str, text: str = "") -> None:
        done = subprocess.run(
            [_program(command[0]), *command[1:]],
            input=text.encode(),
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            timeout=SERVER_SECONDS,
            check=False,
            **self._as_user(),
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.decode()}")

    def _initialize(self) -> None:
        user = self._as_user()
        if user:
            os.chown(self.directory, user["user"], user["group"])
        secret = self.directory / "initial"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self.password_file.write_text(self.password)
        self.password_file.chmod(0o600)
        self._run(
            "initdb", "-D", str(self.directory / "data"), "-U", "tidegate", "-A", "md5",
            "--pwfile", str(secret), "--no-sync", "-E", "UTF8",
        )  # fmt: skip
        if self.address != "127.0.0.1":
            with (self.directory / "data/pg_hba.conf").open("a") as file:
                file.write("host all all 0.0.0.0/0 md5\n")
        role = f"CREATE ROLE {self.scram_user} SUPERUSER LOGIN PASSWORD '{self.password}'"
        self._run(
            "postgres", "--single", "-F", "-D", str(self.directory / "data"),
            "-c", "password_encryption=scram-sha-256", "postgres", text=role,
        )  # fmt: skip

    def start(self) -> None:
        """Start it, unless it runs; return when it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        settings = {
            "listen_addresses": self.address,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "60",
            "shared_buffers": "64MB",
            # A killed server loses nothing that the kernel has; without a power cut, which no test
            # can make, waiting for the disk proves nothing.
            "fsync": "off",
            "full_page_writes": "off",
            "logging_collector": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # A server that was killed leaves its shared memory's lock file; it sees that by itself.
        with (self.directory / "log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self.directory / "data"), *options],
                cwd=self.directory,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )
        end = time.monotonic() + SERVER_SECONDS
        ready = [_program("pg_isready"), "-q", "-h", self.address, "-p", str(self.port)]
        while subprocess.run(ready, check=False, timeout=SERVER_SECONDS).returncode:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.directory / "log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self, how: signal.Signals) -> None:
        """SIGINT: at once and in order; SIGQUIT: at once; SIGKILL: as in a crash, with all its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            if how is signal.SIGKILL:
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
        try:
            process.wait(SERVER_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(SERVER_SECONDS)

    @contextlib.contextmanager
    def crash_behind(self) -> Iterator[None]:
        """What is committed inside without waiting for the disk is lost in a crash at the end.

        On return the server has noticed, and restarts by itself.
        """
        assert self._process is not None
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        names = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
        (writer,) = [int(child) for child, name in names.items() if b"walwriter" in name]
        before = self._crashes()
        os.kill(writer, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(writer, signal.SIGKILL)
        end = time.monotonic() + SERVER_SECONDS
        while self._crashes() == before:
            if time.monotonic() > end:
                raise RuntimeError((self.directory / "log").read_text()[-2000:])
            time.sleep(0.01)

    def _crashes(self) -> int:
        return (self.directory / "log").read_bytes().count(b"all server processes terminated")
