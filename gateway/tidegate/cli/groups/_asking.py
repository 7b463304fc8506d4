"""How a command asks the gateway that runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from tidegate.config import load_config
from tidegate.operator_socket import SOCKET_NAME, OperatorClient
from tidegate.spi import GatewayError, RequestError, names, parse_duration, units
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import Answer, Done, Lengthy, Request

_AnswerT = TypeVar("_AnswerT", bound=Answer)

SelectorOption = Annotated[
    str,
    typer.Option("--selector", metavar="SELECTOR", help="Only messages that match this selector."),
]
CountOption = Annotated[
    int, typer.Option("--count", min=0, help="At most this many messages; 0 means all.")
]
MessagesOption = Annotated[
    list[int] | None,
    typer.Option(
        "--message",
        metavar="NUMBER",
        min=1,
        help="Only this message, by the number that `browse` shows; repeatable.",
    ),
]
KeepOption = Annotated[
    str,
    typer.Option(
        "--keep",
        metavar="TIME",
        help="Keep the messages this long; until then `undo` brings them back.",
    ),
]


class NoGatewayError(ClientError):
    """No gateway runs there, or none that has a directory of its own."""


def connected(config: Path | None) -> OperatorClient:
    """To the gateway of *config*. Raises: ConfigError; NoGatewayError; ClientError."""
    broker = load_config(config).broker
    if not broker.persistent:
        raise NoGatewayError(
            "a gateway without persistence (broker.persistent = false) has no data "
            f"directory, and so no {SOCKET_NAME} to connect to"
        )
    directory = broker.data_directory
    try:
        return OperatorClient(directory)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoGatewayError(
            f"no gateway is running on {directory} (nothing answers at {SOCKET_NAME} in "
            "it); start it, or name its configuration with --config"
        ) from None
    except PermissionError:
        raise ClientError(
            f"{directory}: the gateway there belongs to another user; run this command as that user"
        ) from None


def ask(client: OperatorClient, request: Request, kind: type[_AnswerT]) -> _AnswerT:
    """The answer to *request*.

    Raises: typer.BadParameter for what makes no sense; AccessError; ClientError for all else.
    """
    try:
        answer = client.answer(request)
    except RequestError as error:
        raise typer.BadParameter(str(error)) from error
    if not isinstance(answer, kind):
        raise ClientError(
            "unexpected answer: the gateway and this command are of different versions; "
            "use the same version for both"
        )
    return answer


def go_on(config: Path | None, request: Lengthy) -> Done:
    """Ask until all of it is done. Raises: as `ask`; ClientError, which says how far it came."""
    count, asked = 0, request
    with connected(config) as client:
        while True:
            try:
                done = ask(client, asked, Done)
            except (GatewayError, typer.BadParameter) as error:
                if not count:
                    raise
                raise ClientError(f"stopped after {count} messages: {error}") from error
            count += done.count
            if done.is_complete:
                return msgspec.structs.replace(done, count=count)
            left = request.count_max - count if request.count_max else 0
            asked = msgspec.structs.replace(
                request, after=done.after, through=done.through, count_max=left
            )


def kept_until(keep: str) -> int:
    """Of `KeepOption`, microseconds since the epoch; 0: they are not kept. Raises: typer.BadParameter."""
    if not keep:
        return 0
    try:
        return int((time.time() + parse_duration(keep)) * 1_000_000)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from None


def numbered(messages: list[int] | None) -> tuple[int, ...] | None:
    """Of `MessagesOption`, what a request has; None: all of them."""
    return tuple(messages) if messages else None


def canonical(text: str) -> str:
    """A destination as people write it: NAME alone is a queue."""
    return text if names.is_queue(text) or names.is_topic(text) else names.queue(text)


def moment(microseconds: int) -> str:
    """A time since the epoch as people read it, UTC."""
    return units.moment(microseconds // 1_000_000)
