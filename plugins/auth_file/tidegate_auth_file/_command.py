"""``tidegate user``: users in a file.

A password comes from the terminal or, when stdin is not one, from its first line; never from an argument,
which every user of the machine can see. A running gateway picks up changes by itself.
"""

from __future__ import annotations

import enum
import getpass
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.spi import CommandHost, ConfigError
from tidegate_auth_file import _edit
from tidegate_auth_file._authenticator import AuthFileOptions
from tidegate_auth_file._users import FILE_BYTES_MAX, read_users
from tidegate_auth_file._verifier import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    PASSWORD_BYTES_MAX,
)

#: The name of the extension in the configuration.
PLUGIN: Final = "auth-file"

#: More than any password may have, so that a longer one is reported as too long.
_LINE_MAX: Final = 4 * PASSWORD_BYTES_MAX

app: Final = typer.Typer(
    rich_markup_mode=None,
    help="Manage the file of users: add, remove, change, list and import them.",
    epilog="A running gateway picks up changes by itself.",
)


class Method(enum.Enum):
    """How a password is stored."""

    ARGON2ID = "argon2id"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The gateway's configuration file."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="The file of users, instead of the configuration's."
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user.")]
MethodOption = Annotated[
    list[Method] | None,
    typer.Option(
        "--method",
        "-m",
        help="What to store: argon2id for plain passwords, SCRAM for MQTT 5.0 clients that "
        "support it; repeatable.",
    ),
]
IterationsOption = Annotated[
    int,
    typer.Option(
        min=ITERATIONS_MIN,
        max=ITERATIONS_MAX,
        metavar="N",
        help="SCRAM iterations: the cost of each login, and of each guess for somebody who "
        "has stolen the file.",
    ),
]


@app.command()
def add(
    context: typer.Context,
    name: NameArgument,
    config: ConfigOption = None,
    file: FileOption = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group of the user; repeatable.")
    ] = None,
    method: MethodOption = None,
    iterations: IterationsOption = ITERATIONS_DEFAULT,
) -> None:
    """Add a user.

    The password is asked for, or is the first line of stdin when that is no terminal. The file is made,
    for its owner alone, when there is none.
    """
    path = _file(context, config, file)
    wanted = _wanted(method or [Method.ARGON2ID], iterations)
    with _told():
        _edit.check(path, name, exists=False)
        _edit.add(path, name, _password(), wanted, group or [])


@app.command()
def passwd(
    context: typer.Context,
    name: NameArgument,
    config: ConfigOption = None,
    file: FileOption = None,
    method: MethodOption = None,
    iterations: IterationsOption = ITERATIONS_DEFAULT,
) -> None:
    """Give a user another password.

    Without --method what the user has stays: argon2id, and the SCRAM methods.
    """
    path = _file(context, config, file)
    wanted = _wanted(method, iterations) if method else None
    with _told():
        _edit.check(path, name, exists=True)
        _edit.set_password(path, name, _password(), wanted)


@app.command()
def remove(
    context: typer.Context,
    name: NameArgument,
    config: ConfigOption = None,
    file: FileOption = None,
) -> None:
    """Remove a user. A gateway that runs ends its connections."""
    path = _file(context, config, file)
    with _told():
        _edit.remove(path, name)


@app.command()
def groups(
    context: typer.Context,
    name: NameArgument,
    group: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP]...", help="The groups; without any, the user is in no group."
        ),
    ] = None,
    config: ConfigOption = None,
    file: FileOption = None,
) -> None:
    """Set the groups of a user, in place of those that it is in."""
    path = _file(context, config, file)
    with _told():
        _edit.set_groups(path, name, group or [])


@app.command(name="list")
def list_command(
    context: typer.Context,
    config: ConfigOption = None,
    file: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the users, and what is stored of their passwords (not the hashes)."""
    host: CommandHost = context.obj
    users = read_users(_file(context, config, file))
    rows = [
        {
            "user": name,
            "password": found.kind,
            "scram": [verifier.method for verifier in users.verifiers_of(name)],
            "groups": sorted(users.groups_of(name)),
            "should_be_replaced": not found.is_ours,
        }
        for name, found in sorted(users.hashes())
    ]
    if as_json:
        host.print_json({"users": rows})
        return
    host.print_table(
        ("user", "password", "SCRAM", "groups"),
        [
            (
                row["user"],
                f"{row['password']} (old)" if row["should_be_replaced"] else row["password"],
                " ".join(map(str, row["scram"])),  # type: ignore[call-overload]
                " ".join(map(str, row["groups"])),  # type: ignore[call-overload]
            )
            for row in rows
        ],
    )


@app.command(name="import")
def import_command(
    context: typer.Context,
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file written by htpasswd or mosquitto_passwd.")
    ],
    config: ConfigOption = None,
    file: FileOption = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="Skip users that cannot be imported.")
    ] = False,
) -> None:
    """Take the users of another program's file over, with the passwords that they have.

    Their hashes stay as they are until the user has another password, or logs in while the extension
    has rehash = true. A line that cannot be taken over is named, and then nothing is changed.
    """
    path = _file(context, config, file)
    with _told():
        users, problems = _edit.read_foreign(_foreign_text(source))
        for problem in problems:
            typer.echo(f"{source}: {problem}", err=True)
        if problems and not skip:
            raise ValueError(
                f"{source}: {len(problems)} lines cannot be imported; nothing was "
                "changed (--skip leaves them out)"
            )
        if users:
            _edit.take_over(path, users)
    typer.echo(f"{len(users)} users imported into {path}")


# ------------------------------------------------------------------------------------- helpers


def _file(context: typer.Context, config: Path | None, file: Path | None) -> Path:
    """The file of users. Raises: ConfigError when none is given or configured."""
    if file is not None:
        return file
    host: CommandHost = context.obj
    found = host.extension_options(config, PLUGIN)
    if len(found) != 1:
        what = "no" if not found else "more than one"
        raise ConfigError(
            f'there is {what} [[extensions]] with plugin = "{PLUGIN}"; name a configuration that has'
            " one with --config, or the file of users with --file",
            path=str(config or ""),
        )
    options = found[0]
    assert isinstance(options, AuthFileOptions)
    return options.users


def _wanted(methods: list[Method], iterations: int) -> _edit.Wanted:
    scram = [method.value for method in dict.fromkeys(methods) if method is not Method.ARGON2ID]
    return _edit.Wanted(Method.ARGON2ID in methods, tuple(scram), iterations)


def _foreign_text(source: Path) -> str:
    status = source.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{source} is not a regular file")
    if status.st_size > FILE_BYTES_MAX:
        raise ValueError(f"{source} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return source.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{source} is not UTF-8 text") from None


def _password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline(_LINE_MAX).rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the two passwords do not match")
    return password


@contextmanager
def _told() -> Generator[None]:
    """Turn a ValueError into the contract's error."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None
