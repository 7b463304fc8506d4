"""A PostgreSQL of the benchmark's own, on loopback, with its default durability."""

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchkit.process import free_ports

_SECONDS: Final = 60.0
USER: Final = "bench"
PASSWORD: Final = "bench"
DATABASE: Final = "bench"


@dataclass(frozen=True, slots=True)
class Postgres:
    """One that runs. Attributes: port; version: as it says itself."""

    port: int
    version: str

    @property
    def url(self) -> str:
        """Of its database, without user and password."""
        return f"postgresql://127.0.0.1:{self.port}/{DATABASE}"


def binaries() -> Path | None:
    """The folder of the server's programs; None when there is none here."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).parent] if found else []
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def as_user() -> dict[str, Any]:
    """What `subprocess` needs to run the server: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def postgres(work: Path) -> Iterator[Postgres]:
    """Run a fresh server below *work* for the length of a `with` block.

    Raises: RuntimeError when there is none, or it does not start.
    """
    folder = binaries()
    if folder is None:
        raise RuntimeError("no PostgreSQL server here; install the package postgresql-15")
    state = work / "postgres"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    user = as_user()
    if user:
        os.chown(state, user["user"], user["group"])
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(state),
        "PGUSER": USER, "PGPASSWORD": PASSWORD, "PGHOST": "127.0.0.1",
    }  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(folder / command[0]), *command[1:]], cwd=state, env=environment, text=True,
            capture_output=True, timeout=_SECONDS, check=False, **user,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    run("initdb", "-D", str(state / "data"), "-U", USER, "-A", "trust", "-E", "UTF8")
    (port,) = free_ports(1)
    settings = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (state / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(folder / "postgres"), "-D", str(state / "data"), *options], cwd=state,
            env=environment, stdout=log, stderr=log, start_new_session=True, **user,
        )  # fmt: skip
    environment["PGPORT"] = str(port)
    try:
        end = time.monotonic() + _SECONDS
        while True:
            try:
                run("pg_isready", "-q")
                break
            except RuntimeError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((state / "log").read_text()[-1000:]) from None
                time.sleep(0.1)
        run("createdb", DATABASE)
        yield Postgres(port, run("postgres", "--version").rpartition(") ")[2].split()[0])
    finally:
        process.terminate()
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_SECONDS)
