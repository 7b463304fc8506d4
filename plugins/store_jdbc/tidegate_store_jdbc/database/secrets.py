"""User and password of the database: password file, environment, options, URL; in this order.

Each may be masked, ``ENC(…)``: Fernet (AES-128-CBC and HMAC-SHA256) under a key from a file of its
own or the environment. A password found nowhere can be asked for on the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import stat
import sys
import termios
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.fernet import Fernet, InvalidToken

from tidegate.spi import ConfigError
from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc.database.url import DatabaseUrl

logger = logging.getLogger("tidegate.store.jdbc")

USER_VARIABLE: Final = "TIDEGATE_STORE_USER"
PASSWORD_VARIABLE: Final = "TIDEGATE_STORE_PASSWORD"
KEY_VARIABLE: Final = "TIDEGATE_STORE_KEY"
#: The options that are about users and passwords.
_OPTIONS: Final = ("user", "password", "password_file", "needpassword", "mask_key_file")
#: A password file is a few lines; anything larger is the wrong file.
FILE_BYTES_MAX: Final = 4096


@dataclass(slots=True)
class Credentials:
    """The user and password to connect with; "" when the database asks for none.

    Attributes:
        is_asked_for: the password is needed and not known yet (:meth:`ask`).
        given: the options that set either of them.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    is_asked_for: bool = False
    given: tuple[str, ...] = field(default=(), compare=False)

    def refuse(self, database: str) -> None:
        """For an adapter whose *database* knows no users. Raises: ConfigError for the first option."""
        if self.given:
            raise ConfigError(
                f"does nothing: {database} has no users and passwords", key=self.given[0]
            )

    def ask(self) -> None:
        """Ask on the terminal if needed; blocks. Raises: ConfigError without a terminal."""
        if not self.is_asked_for:
            return
        if not sys.stdin.isatty():
            raise ConfigError(
                f"no password was found and there is no terminal to ask on; use password_file or "
                f"the variable {PASSWORD_VARIABLE}",
                key="needpassword",
            )
        self.password = getpass.getpass("Password of the database: ", stream=sys.stderr)
        self.is_asked_for = False


async def ask(secret: Credentials) -> None:
    """As :meth:`Credentials.ask`, beside the event loop; raises the same.

    When cancelled, for example by Ctrl-C, it restores the terminal's echo and abandons the reading
    thread. A thread of an executor would keep the process alive until somebody presses Enter.
    """
    if not secret.is_asked_for:
        return
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def settle(error: Exception | None) -> None:
        if asked.done():
            return
        if error is None:
            asked.set_result(None)
        else:
            asked.set_exception(error)

    def work() -> None:
        problem: Exception | None = None
        try:
            secret.ask()
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, problem)

    with _terminal_kept():
        threading.Thread(target=work, name="jdbc-password", daemon=True).start()
        await asked


@contextlib.contextmanager
def _terminal_kept() -> Generator[None]:
    """Restore the terminal's settings on exit, if there is a terminal."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def credentials(
    options: JdbcOptions, url: DatabaseUrl, directory: Path, environment: Mapping[str, str]
) -> Credentials:
    """Find user and password.

    Args: directory: for a relative ``password_file``; environment: ``os.environ``.
    Raises: ConfigError, which never shows a value.
    """
    found: dict[str, str] = {}
    if options.password_file:
        found = read_password_file(directory / options.password_file)
    user = found.get("user") or environment.get(USER_VARIABLE) or options.user or url.user
    password = found.get("password") or environment.get(PASSWORD_VARIABLE)
    written = {"password": options.password, "url": url.password}
    for name, value in written.items():
        # Even if it is not used: whoever can read the file has it.
        if value and not is_masked(value):
            logger.warning(
                "store.%s holds a password in clear; mask it ('tidegate store mask'), or use "
                "store.password_file or the variable %s",
                name,
                PASSWORD_VARIABLE,
            )
    key = "url" if url.password and not options.password else "password"
    password = password or options.password or url.password
    if is_masked(user) or is_masked(password or ""):
        secret = mask_key(options, directory, environment)
        user, password = unmask(user, secret, "user"), unmask(password or "", secret, key)
    given = tuple(name for name in _OPTIONS if getattr(options, name))
    if url.user or url.password:
        given += ("url",)
    return Credentials(user, password or "", options.needpassword and not password, given)


def is_masked(value: str) -> bool:
    """Whether *value* is written as ``ENC(…)``."""
    return value.startswith("ENC(") and value.endswith(")")


def mask(value: str, secret: bytes) -> str:
    """*value* as ``ENC(…)`` under a key. Raises: ConfigError for an invalid key."""
    return f"ENC({_fernet(secret).encrypt(value.encode()).decode()})"


def unmask(value: str, secret: bytes, key: str) -> str:
    """The inverse; a value that is not masked is returned as it is.

    Raises: ConfigError at *key* when it was masked with another key or is not whole.
    """
    if not is_masked(value):
        return value
    try:
        return _fernet(secret).decrypt(value[4:-1].encode()).decode()
    except (InvalidToken, ValueError):
        # From None: the cause's text would show the value.
        raise ConfigError(
            "ENC(…) was masked with another key, or is not whole; mask it again with 'tidegate "
            "store mask'",
            key=key,
        ) from None


def mask_key(options: JdbcOptions, directory: Path, environment: Mapping[str, str]) -> bytes:
    """The key of masked values, from its file or the environment. Raises: ConfigError."""
    if options.mask_key_file:
        return read_private_file(directory / options.mask_key_file, "mask_key_file").strip()
    if environment.get(KEY_VARIABLE):
        return environment[KEY_VARIABLE].strip().encode()
    raise ConfigError(
        f"is needed for masked values, ENC(…); or set the variable {KEY_VARIABLE}",
        key="mask_key_file",
    )


def new_key(path: Path) -> bytes:
    """Generate a key in a new file that only its owner can read. Raises: ConfigError."""
    secret = Fernet.generate_key()
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as writer:
            writer.write(secret + b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", key="mask_key_file") from error
    return secret


def _fernet(secret: bytes) -> Fernet:
    try:
        return Fernet(secret)
    except ValueError:
        raise ConfigError(
            "the key is not one of 'tidegate store mask --new-key'", key="mask_key_file"
        ) from None


def read_password_file(path: Path) -> dict[str, str]:
    """Read ``user=`` and ``password=`` lines, or a file that is just the password.

    Raises: ConfigError when it is missing, too large, or readable by others than its owner.
    """
    content = read_private_file(path, "password_file")
    key = "password_file"
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", key=key) from None
    lines = [line for line in lines if line.strip() and not line.startswith("#")]
    if len(lines) == 1 and not lines[0].startswith(("user=", "password=")):
        return {"password": lines[0]}
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not equals or name.strip() not in ("user", "password"):
            raise ConfigError(f"{path}: line {number} is not user=… or password=…", key=key)
        values[name.strip()] = value
    return values


def read_private_file(path: Path, key: str) -> bytes:
    """Read a small file of secrets.

    Raises: ConfigError when it is missing, too large, or readable by others than its owner.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} is not a regular file", key=key)
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"{path} can be used by others than its owner (mode "
                    f"{stat.S_IMODE(found.st_mode):04o}); run: chmod 600 {path}",
                    key=key,
                )
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", key=key) from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes", key=key)
    return content
