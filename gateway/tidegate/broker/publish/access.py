"""What a client may do: authorizers, interceptors, and what the gateway itself refuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from tidegate.broker.limits.acknowledged import AcknowledgedLog
from tidegate.spi import (
    AccessError,
    Action,
    Authorizer,
    FlowControlError,
    Identity,
    Interceptor,
    Message,
    RequestError,
    Verdict,
    names,
)

_log = logging.getLogger("tidegate.broker")

#: Destinations that a connection's authorizations are remembered for; past it they are asked anew.
AUTHORIZATIONS_MAX: Final = 1000


class Author(Protocol):
    """Who wants something: a connection, or the will of one that is gone.

    Attributes: authorized: (action, destination) that every authorizer allowed.
    """

    address: str
    authorized: set[tuple[Action, str]]

    @property
    def identity(self) -> Identity: ...

    @property
    def principal(self) -> str: ...


class Access:
    """Asks the extensions. *extensions*: all that are configured, in order; others are ignored."""

    def __init__(self, extensions: Sequence[object], log: AcknowledgedLog) -> None:
        self.authorizers = [e for e in extensions if isinstance(e, Authorizer)]
        self._interceptors = [e for e in extensions if isinstance(e, Interceptor)]
        self._log = log

    @property
    def checks_publish(self) -> bool:
        """Publishes must be checked just now."""
        return bool(self.authorizers or self._interceptors or self._log.refusing)

    def check_destination(self, author: Author, destination: str) -> None:
        """Limits and authorizers. Raises: AccessError, FlowControlError."""
        if self._log.refusing:
            raise FlowControlError(
                "publishes are refused: the sinks do not keep up and the acknowledged log is at"
                " its limit (broker.acknowledged_limit)"
            )
        self.authorize(author, Action.PUBLISH, destination)

    def check_publish(self, author: Author, message: Message) -> Message:
        """Limits, authorizers and interceptors. Raises: AccessError, FlowControlError."""
        self.check_destination(author, message.destination)
        for interceptor in self._interceptors:
            try:
                message = interceptor.intercept(message, author.principal)
            except AccessError:
                raise
            except Exception:
                _log.exception("interceptor=%s failed", interceptor)
                raise AccessError(
                    "the publish could not be checked",
                    principal=author.principal,
                    destination=message.destination,
                ) from None
        check_large(message)
        destination = message.destination
        if message.retain and (names.is_queue(destination) or names.is_temporary(destination)):
            # A queue keeps its messages anyway; nobody could find a temporary topic's later.
            return msgspec.structs.replace(message, retain=False)
        return message

    def authorize(self, author: Author, action: Action, destination: str) -> None:
        authorized = author.authorized
        if not self.authorizers or (action, destination) in authorized:
            return
        identity = author.identity
        for authorizer in self.authorizers:
            try:
                verdict = authorizer.authorize(identity, action, destination)
            except Exception:
                _log.exception("authorizer=%s failed", authorizer)
                verdict = Verdict.DENY
            if verdict is not Verdict.ALLOW:
                raise AccessError(
                    f"{action.value} is not allowed",
                    principal=identity.principal,
                    destination=destination,
                )
        if len(authorized) >= AUTHORIZATIONS_MAX:
            authorized.clear()
        authorized.add((action, destination))

    def check_subscribe(self, author: Author, destination: str) -> None:
        """Raises: RequestError for a bad name, AccessError when refused."""
        if not (names.is_queue(destination) or names.is_topic(destination)):
            raise RequestError(f"{destination!r} is neither a queue nor a topic")
        try:
            names.check_filter(names.name_of(destination))
        except ValueError as error:
            raise RequestError(str(error)) from None
        self.authorize(author, Action.SUBSCRIBE, destination)


def check_large(message: Message) -> None:
    """Raises: RequestError for a large message that is to be retained or has a body besides.

    Retained messages are kept in memory, and one with an empty body would clear what is retained.
    """
    if message.large is None:
        return
    if message.retain:
        raise RequestError(
            f"a message with a body of {message.large.size} bytes cannot be retained: retained"
            " messages are kept in memory, and the store streams bodies of this size"
        )
    if message.body:
        raise RequestError("a message has either a body or a large body")
