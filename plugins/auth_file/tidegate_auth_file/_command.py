"""``python -m tidegate_auth_file``: add and remove lines of the file of users.

The password comes from the terminal or, when stdin is none, from its first line; never from an
argument, which every user of the machine can see. The file is exchanged in one step, so that a
gateway that reads it meanwhile sees the old one or the new one.
"""

from __future__ import annotations

import argparse
import base64
import getpass
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate.spi import ConfigError
from tidegate_auth_file._users import SECRET_BYTES, SECRET_PREFIX, parse_users, read_users
from tidegate_auth_file._verifier import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    METHOD_DEFAULT,
    METHODS,
    SALT_BYTES,
    make,
    prepared_name,
)

#: Exit code of a command that could not do it; a wrong call is argparse's 2.
EXIT_FAILED: Final = 1

_MODE_NEW: Final = 0o600
_NOT_AT_THE_START: Final = ("#", "!")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        name = _checked_name(options.name)
        if options.command == "add":
            add(options.file, name, options.method, options.iterations)
        else:
            remove(options.file, name)
    except (ConfigError, ValueError) as error:
        problem = error.problem if isinstance(error, ConfigError) else str(error)
        sys.stderr.write(f"tidegate_auth_file: error: {problem}\n")
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"tidegate_auth_file: error: {where}{error.strerror}\n")
        return EXIT_FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate_auth_file",
        description="Users of the gateway and their passwords.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser(
        "add",
        help="add a user, or give one another password",
        description="Add a user, or give one another password. It is asked for, or is the first"
        " line of stdin when that is no terminal.",
    )
    removing = commands.add_parser("remove", help="remove a user")
    for command in (adding, removing):
        command.add_argument("file", type=Path, metavar="FILE", help="the file of users")
        command.add_argument("name", metavar="NAME", help="the user")
    adding.add_argument(
        "--method", choices=tuple(METHODS), default=METHOD_DEFAULT, help="(default: %(default)s)"
    )
    adding.add_argument(
        "--iterations",
        type=int,
        default=ITERATIONS_DEFAULT,
        metavar="N",
        help="what trying a password costs, and every log-in, for a SCRAM client on its own side"
        " (default: %(default)s)",
    )
    return parser


def add(path: Path, name: str, method: str, iterations: int) -> None:
    """Replace the line of *name* and *method*, or add it; make the file when there is none.

    Raises: ConfigError for a file that is wrong; ValueError for a password that cannot be one.
    """
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"--iterations: from {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed")
    lines = _lines(path) if path.exists() else []
    if not any(line.startswith(SECRET_PREFIX) for line in lines):
        secret = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
        lines.insert(0, SECRET_PREFIX + secret)
    verifier = make(_password(), method, iterations, secrets.token_bytes(SALT_BYTES))
    mine = f"{name}:{method}$"
    kept = [line for line in lines if not line.startswith(mine)]
    _write(path, [*kept, f"{name}:{verifier.written()}"])


def remove(path: Path, name: str) -> None:
    """Remove every line of *name*. Raises: ConfigError; ValueError when there is none."""
    lines = _lines(path)
    mine = tuple(f"{name}:{method}$" for method in METHODS)
    kept = [line for line in lines if not line.startswith(mine)]
    if len(kept) == len(lines):
        raise ValueError(f"{path} has no user {name!r}")
    _write(path, kept)


def _checked_name(name: str) -> str:
    prepared = prepared_name(name)
    if prepared.startswith(_NOT_AT_THE_START):
        raise ValueError(f"a user name must not begin with {prepared[0]!r}")
    return prepared


def _lines(path: Path) -> list[str]:
    read_users(path)  # a file that is wrong is not made worse
    return path.read_text(encoding="utf-8").splitlines()


def _password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the two passwords are not the same")
    return password


def _write(path: Path, lines: Sequence[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    parse_users(text, str(path))  # what we write we can read
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(made)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():  # whoever may read it now may read it then
                status = path.stat()
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            else:
                os.fchmod(file.fileno(), _MODE_NEW)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
