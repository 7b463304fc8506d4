"""Changes the file of users: one change at a time, atomic, and durable on return."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_auth_file._hashes import PasswordHash, Scram, make_hash, parse_hash
from tidegate_auth_file._users import (
    GROUPS_PREFIX,
    NOT_A_NAME,
    SECRET_BYTES,
    SECRET_PREFIX,
    checked_groups,
    checked_name,
    parse_users,
    read_text,
    split_line,
)
from tidegate_auth_file._verifier import ITERATIONS_DEFAULT, SALT_BYTES, check_password, make

MODE_NEW: Final = 0o600

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How to store a password.

    Attributes: is_plain: a hash for plain passwords; methods: of SCRAM.
    """

    is_plain: bool = True
    methods: tuple[str, ...] = ()
    iterations: int = ITERATIONS_DEFAULT

    def hashes(self, password: str) -> list[PasswordHash]:
        """The hashes of *password*. Raises: ValueError for an invalid one."""
        check_password(password)
        made = [make_hash(password)] if self.is_plain else []
        for method in self.methods:
            salt = secrets.token_bytes(SALT_BYTES)
            made.append(Scram(make(password, method, self.iterations, salt)))
        return made


def add(path: Path, name: str, password: str, wanted: Wanted, groups: Sequence[str] = ()) -> None:
    """Add a user; create the file if missing.

    Raises: ConfigError for an invalid file; ValueError for an invalid name or password, or a user
        that exists.
    """
    name = checked_name(name)
    made = [f"{name}:{item.written()}" for item in wanted.hashes(password)]
    checked_groups(groups)

    def change(lines: Lines) -> Lines:
        if any(_is_of(line, name) for line in lines):
            raise ValueError(f"{path} already has a user {name!r}; use passwd or groups")
        return [*lines, *made, *_groups_line(name, groups)]

    rewrite(path, change, create=True)


def check(path: Path, name: str, *, exists: bool) -> None:
    """Check before asking for a password. Raises: ConfigError; ValueError unless *exists* holds."""
    name = checked_name(name)
    is_there = path.exists() and name in parse_users(read_text(path), str(path)).names
    if is_there and not exists:
        raise ValueError(f"{path} already has a user {name!r}; use passwd or groups")
    if exists and not is_there:
        raise ValueError(f"{path} has no user {name!r}")


def set_password(path: Path, name: str, password: str, wanted: Wanted | None) -> None:
    """Replace the stored password of *name*.

    Args: wanted: None keeps the user's SCRAM methods, and adds an argon2id hash unless there was
        no plain hash.
    Raises: ConfigError; ValueError as :func:`add`, and for an unknown user.
    """
    name = checked_name(name)
    if wanted is None:
        wanted = _wanted_of(path, name)
    made = [f"{name}:{item.written()}" for item in wanted.hashes(password)]

    def change(lines: Lines) -> Lines:
        kept = [line for line in lines if not _is_hash_of(line, name)]
        if len(kept) == len(lines):
            raise ValueError(f"{path} has no user {name!r}")
        return [*kept, *made]

    rewrite(path, change)


def set_groups(path: Path, name: str, groups: Sequence[str]) -> None:
    """Replace the groups of *name*. Raises: ConfigError; ValueError."""
    name = checked_name(name)
    checked_groups(groups)

    def change(lines: Lines) -> Lines:
        if not any(_is_hash_of(line, name) for line in lines):
            raise ValueError(f"{path} has no user {name!r}")
        return [line for line in lines if not _is_groups_of(line, name)] + _groups_line(
            name, groups
        )

    rewrite(path, change)


def remove(path: Path, name: str) -> None:
    """Remove every line of *name*. Raises: ConfigError; ValueError when there is none."""
    name = checked_name(name)

    def change(lines: Lines) -> Lines:
        kept = [line for line in lines if not _is_of(line, name)]
        if len(kept) == len(lines):
            raise ValueError(f"{path} has no user {name!r}")
        return kept

    rewrite(path, change)


def take_over(path: Path, users: Sequence[tuple[str, PasswordHash]]) -> None:
    """Import users with their hashes, all or none.

    Raises: ConfigError; ValueError when one exists already.
    """

    def change(lines: Lines) -> Lines:
        for name, _ in users:
            if any(_is_of(line, name) for line in lines):
                raise ValueError(f"{path} already has a user {name!r}; remove one of the two")
        return [*lines, *(f"{name}:{found.written()}" for name, found in users)]

    rewrite(path, change, create=True)


def replace_hash(path: Path, name: str, old: PasswordHash, new: PasswordHash) -> None:
    """Replace *old* by *new*, unless *old* has changed meanwhile. Raises: ConfigError, OSError."""
    before, after = f"{name}:{old.written()}", f"{name}:{new.written()}"
    rewrite(path, lambda lines: [after if line == before else line for line in lines])


def read_foreign(text: str) -> tuple[list[tuple[str, PasswordHash]], list[str]]:
    """What can be imported from a file of ``htpasswd`` or ``mosquitto_passwd``, and what cannot.

    Returns: names with their hashes; for each other line, what is wrong with it and what to do.
    """
    found: dict[str, PasswordHash] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line or line.startswith("#"):
            continue
        try:
            name, hashed = split_line(line)
            name = checked_name(name)
            if name in found:
                raise ValueError(f"is the second one of {name!r}")
            found[name] = parse_hash(hashed)
        except ValueError as error:
            problems.append(f"line {number} {error}{_hint(line)}")
    return list(found.items()), problems


def _hint(line: str) -> str:
    """What to do about a line that cannot be imported; without its hash."""
    if line.startswith(NOT_A_NAME) or ":" not in line:
        return ""
    name, _, rest = line.partition(":")
    if rest.startswith("$"):
        return ""
    what = "a DES hash, which anybody can break, or " if len(rest) == 13 else ""
    return (
        f": {what}a plain password; give the user a password with `tidegate user add"
        f" {name[:40]}` instead"
    )


# ------------------------------------------------------------------------------------- the file


def rewrite(path: Path, change: Callable[[Lines], Lines], *, create: bool = False) -> None:
    """Replace the file atomically: a reader sees the old one or the new one.

    1. The directory is locked, so that changes are made one after the other.
    2. The new file gets the owner and mode of the old one, and is synced before it gets the name.
    3. The directory is synced, so that the name survives a crash.

    A symbolic link stays one: its target is replaced.

    Args: create: create the file if missing.
    Raises: ConfigError for an invalid file, before or after; OSError; what *change* raises.
    """
    path = path.resolve()
    with _locked(path.parent):
        lines: Lines = []
        if path.exists() or not create:
            text = read_text(path)
            parse_users(text, str(path))  # do not make an invalid file worse
            lines = text.splitlines()
        changed = change(list(lines))
        if changed == lines:
            return
        if not any(line.startswith(SECRET_PREFIX) for line in changed):
            secret = base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
            changed.insert(0, SECRET_PREFIX + secret)
        new = "".join(f"{line}\n" for line in changed)
        parse_users(new, str(path))  # never write what we cannot read
        _write(path, new)


def _write(path: Path, text: str) -> None:
    # Always the same name, safe under the lock: the next change removes what a kill left.
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE_NEW)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():  # keep owner and mode
                status = path.stat()
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            else:
                os.fchmod(file.fileno(), MODE_NEW)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _locked(directory: Path) -> Generator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------- its lines


def _wanted_of(path: Path, name: str) -> Wanted:
    users = parse_users(read_text(path), str(path))
    found = users.hash_of(name)
    if found is None:
        raise ValueError(f"{path} has no user {name!r}")
    verifiers = users.verifiers_of(name)
    return Wanted(
        not isinstance(found, Scram),
        tuple(verifier.method for verifier in verifiers),
        max((verifier.iterations for verifier in verifiers), default=ITERATIONS_DEFAULT),
    )


def _groups_line(name: str, groups: Iterable[str]) -> Lines:
    listed = ",".join(sorted(set(groups)))
    return [f"{GROUPS_PREFIX}{listed}:{name}"] if listed else []


def _is_of(line: str, name: str) -> bool:
    return _is_hash_of(line, name) or _is_groups_of(line, name)


def _is_hash_of(line: str, name: str) -> bool:
    return not line.startswith(NOT_A_NAME) and line != "" and split_line(line)[0] == name


def _is_groups_of(line: str, name: str) -> bool:
    if not line.startswith(GROUPS_PREFIX):
        return False
    return line.removeprefix(GROUPS_PREFIX).partition(":")[2] == name
