"""User and password of the database: password file, environment, options, URL; in this order."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.spi import ConfigError
from tidegate_store_jdbc._options import JdbcOptions
from tidegate_store_jdbc._url import DatabaseUrl

logger = logging.getLogger("tidegate.store.jdbc")

USER_VARIABLE: Final = "TIDEGATE_STORE_USER"
PASSWORD_VARIABLE: Final = "TIDEGATE_STORE_PASSWORD"
#: A password file is a few lines; more is another file that was named by mistake.
FILE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """As whom to connect; "" when the database asks for none."""

    user: str = ""
    password: str = field(default="", repr=False)


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
    if not password and (options.password or url.password):
        key = "password" if options.password else "url"
        logger.warning(
            "store.%s holds a password in clear; use store.password_file or the variable %s",
            key,
            PASSWORD_VARIABLE,
        )
        password = options.password or url.password
    for value, key in ((user, "user"), (password or "", "password")):
        if value.startswith("ENC(") and value.endswith(")"):
            raise ConfigError("masked values, ENC(…), are not supported yet", key=key)
    return Credentials(user, password or "")


def read_password_file(path: Path) -> dict[str, str]:
    """Read ``user=`` and ``password=`` lines, or a file that is just the password.

    Raises: ConfigError when it is missing, too large, or readable by others than its owner.
    """
    key = "password_file"
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
