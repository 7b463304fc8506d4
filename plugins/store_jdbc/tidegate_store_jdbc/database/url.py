"""Database URLs: ``scheme://user:password@host:port/database?option=value``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tidegate.spi import ConfigError

#: The embedded database that is used when no URL is given.
DEFAULT_URL: Final = "sqlite:///tidegate.db"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """The parts of a URL.

    Attributes:
        scheme: in lower case.
        path: what follows the host, without its first slash, decoded: a file or a database.
        options: what follows the question mark.
        password: never shown.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    options: dict[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        """The URL without its secrets."""
        port = f":{self.port}" if self.port else ""
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{self.host}{port}/{self.path}"

    def require_options(self, *known: str) -> None:
        """Refuse options that the adapter does not know. Raises: ConfigError."""
        for name in self.options:
            if name not in known:
                hint = f"known: {', '.join(known)}" if known else "there are none"
                raise ConfigError(f"unknown option {name!r}; {hint}", key="url")

    def require_no_host(self) -> None:
        """For an embedded database: a host would be ignored. Raises: ConfigError."""
        if self.host or self.port:
            raise ConfigError(
                f"names the host {self.host!r}, but the database is a file: write "
                f"'{self.scheme}:///FILE' (below the data directory) or '{self.scheme}:////FILE'",
                key="url",
            )

    def file(self, directory: Path) -> Path:
        """The file of an embedded database; relative ones are below *directory*."""
        return directory / self.path


def parse_url(text: str) -> DatabaseUrl:
    """Parse a URL; "" is the embedded default.

    Raises: ConfigError, which never shows the URL: it may hold a password.
    """
    try:
        parts = urlsplit(text or DEFAULT_URL)
        port = parts.port or 0
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        raise ConfigError("is not a URL such as 'postgresql://host/database'", key="url") from None
    scheme = parts.scheme.lower().removeprefix("jdbc:")
    path = unquote(parts.path.removeprefix("/"))
    if not scheme or not path:
        raise ConfigError(
            "must name a scheme and a database, such as 'sqlite:///tidegate.db' or "
            "'postgresql://host/database'",
            key="url",
        )
    return DatabaseUrl(
        scheme=scheme,
        host=parts.hostname or "",
        port=port,
        path=path,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        options=options,
    )
