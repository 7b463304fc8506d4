"""A file of users, and a client."""

from pathlib import Path

import pytest

from tidegate.spi import Credentials
from tidegate_auth_file._hashes import make_hash
from tidegate_auth_file._verifier import make

#: As few iterations as are allowed: these tests are not about what a password costs.
ITERATIONS = 4096
SALT = b"0123456789abcdef"


@pytest.fixture
def users_file(tmp_path: Path):
    """Write lines to the file of users and return its path."""
    path = tmp_path / "users"

    def write(*lines: str) -> Path:
        replacement = path.with_suffix(".new")  # another inode: seen as changed, whatever the clock
        replacement.touch(0o600)
        replacement.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        replacement.replace(path)
        return path

    return write


@pytest.fixture
def line():
    """The line of a user."""

    def made(name: str, password: str, method: str = "SCRAM-SHA-256", iterations: int = ITERATIONS):
        return f"{name}:{make(password, method, iterations, SALT).written()}"

    return made


@pytest.fixture
def hashed():
    """The line of a user with an argon2id hash that costs next to nothing."""

    def made(name: str, password: str):
        return f"{name}:{make_hash(password, memory_kib=64, time_cost=1).written()}"

    return made


@pytest.fixture
def credentials():
    def made(username: str, password: bytes | None = None) -> Credentials:
        return Credentials(username, password, "device", "mqtt", "127.0.0.1:5", "mqtt://x")

    return made
