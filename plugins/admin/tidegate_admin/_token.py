"""The token file: anyone who can read it may operate this gateway, from this machine."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from tidegate.spi import ConfigError
from tidegate.spi.private_files import private_opener, read_text

TOKEN_FILE: Final = "admin.token"
_KEY: Final = "token_file"
_BYTES_MAX: Final = 4096
#: Also for a token that the operator chose: one that can be guessed is no secret.
_FORM: Final = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")


def token_of(path: Path) -> str:
    """The token in *path*, which is created if missing; blocks briefly.

    Raises: ConfigError: it cannot be made or read, others can read it, or it holds no token.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    # Written aside and linked: two gateways that start together both see the same whole token.
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(aside, "x", encoding="ascii", opener=private_opener) as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", key=_KEY) from None
    return _read(path)


def _read(path: Path) -> str:
    if not path.exists():
        raise FileNotFoundError(path)
    text = read_text(
        path, key=_KEY, bytes_max=_BYTES_MAX, others=0o077, danger="operate this gateway"
    )
    token = text.strip()
    if _FORM.fullmatch(token) is None:
        raise ConfigError(
            f"{path} holds no token of 32 characters or more (letters, digits and ._~+/=-); remove it, and the"
            " gateway makes one",
            key=_KEY,
        )
    return token
