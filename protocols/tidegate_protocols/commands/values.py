"""What the command-line clients read from their options and print; nothing of the protocols.

Every refusal is a `typer.BadParameter` that names the option.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Final

import typer

from tidegate.spi import parse_duration
from tidegate.spi.printable import printable_lines

#: 30 days, which every wait of the platform accepts.
WAIT_MAX: Final = 30 * 86_400


def bad(option: str, text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint=f"'{option}'")


def read_password(user: str | None, variable: str, file: Path | None, else_: str) -> bytes | None:
    """The password from *file* without its last line end, from the environment, or from a prompt.

    Args: else_: the alternative to setting the environment's *variable*, for the error.
    """
    if user is None:
        if file is not None:
            raise bad("--password-file", "it needs --user")
        return None
    if file is not None:
        return read_file(file, "--password-file").removesuffix(b"\n").removesuffix(b"\r")
    known = os.environ.get(variable)
    if known is not None:
        return known.encode("utf-8", "surrogateescape")
    if not sys.stdin.isatty():
        raise bad(
            "--user",
            f"set {variable}{else_}: there is no terminal to ask for the password",
        )
    return str(typer.prompt("Password", hide_input=True, err=True)).encode()


def read_file(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise bad(option, f"{file}: {error.strerror or error}") from None


def read_wait(text: str, option: str) -> float:
    """A time above 0 that this program waits itself."""
    seconds = read_time(text, option)
    if not 0 < seconds <= WAIT_MAX:
        raise bad(option, "it must be above 0 and at most 30d")
    return seconds


def read_time(text: str, option: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise bad(option, str(error)) from None


def read_pairs(lines: list[str] | None, option: str) -> tuple[tuple[str, str], ...]:
    """Lines NAME:VALUE: names may repeat, and the order is kept."""
    pairs: list[tuple[str, str]] = []
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise bad(option, f"{line!r} is not NAME:VALUE")
        pairs.append((name, value))
    return tuple(pairs)


def text_of(name: str, data: bytes) -> dict[str, str]:
    """For machines: bytes that are not UTF-8 are given in base64 under a separate name."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def write_body(body: bytes, head: bytes = b"") -> None:
    """Print a line of bytes on stdout, and flush: the next step acknowledges it.

    Unchanged for a file or another program; on a terminal without control characters.
    """
    if sys.stdout.isatty():
        sys.stdout.write(printable_lines((head + body).decode("utf-8", "replace")) + "\n")
        sys.stdout.flush()
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(head + body + b"\n")
    sys.stdout.buffer.flush()
