"""How a command asks the gateway that runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeVar

import typer

from tidegate.config import load_config
from tidegate.operator_socket import SOCKET_NAME, OperatorClient
from tidegate.spi import RequestError
from tidegate.spi.commands import ClientError
from tidegate.spi.operate import Answer, Request

_AnswerT = TypeVar("_AnswerT", bound=Answer)


class NoGatewayError(ClientError):
    """No gateway runs there, or none that has a directory of its own."""


def connected(config: Path | None) -> OperatorClient:
    """To the gateway of *config*. Raises: ConfigError; NoGatewayError; ClientError."""
    broker = load_config(config).broker
    if not broker.persistent:
        raise NoGatewayError(
            "a gateway that keeps nothing (broker.persistent = false) has no data directory, and"
            f" so no {SOCKET_NAME} to be spoken to"
        )
    directory = broker.data_directory
    try:
        return OperatorClient(directory)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise NoGatewayError(
            f"no gateway runs on {directory} (nobody answers at {SOCKET_NAME} in it); start it, or"
            " name its configuration with --config"
        ) from None
    except PermissionError:
        raise ClientError(
            f"{directory}: the gateway there is another user's; run this as that user"
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
        raise ClientError("the gateway is of another version: it answered something else")
    return answer


def moment(microseconds: int) -> str:
    """A time since the epoch as people read it, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(microseconds // 1_000_000))
