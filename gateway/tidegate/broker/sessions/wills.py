"""Wills: what is published for a client that left without saying goodbye, at once or later.

The will of a client with a stored session is stored with it, so that it is published even if the
gateway was killed, and in one batch with a note of that, so that it is published once. A will that
finds the store full waits for room.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import msgspec

from tidegate.broker.owner import origin_of
from tidegate.broker.publish.access import Access, Rights
from tidegate.broker.publish.publisher import Publisher
from tidegate.broker.sessions.state import SessionState
from tidegate.broker.turn.writer import TurnWriter
from tidegate.plugin_exit import FAILURES, failure_of
from tidegate.spi import (
    AccessError,
    FlowControlError,
    GatewayError,
    Identity,
    Message,
    Principal,
    PutSession,
    Token,
)

_log = logging.getLogger("tidegate.broker.wills")

#: Wills that may wait for their delay or for room; beyond this, one that cannot go out at once is lost.
WAITING_MAX: Final = 100_000

#: How long a will that found no room waits before the next try.
RETRY_US: Final = 1_000_000


@dataclass(slots=True, eq=False)
class Will:
    """A will whose client is gone.

    Stands in for the client where a connection is expected: as author of the publish, and to be told
    of its failure.

    Attributes:
        message: what to publish; identity, address: of the client, as it was when last connected.
        session: the stored session that holds it; None when none does.
        due: when to publish, by :meth:`TurnWriter.elapsed`.
        is_late: its time came, but there was no room: nothing takes it back now.
        rights: see :class:`~tidegate.broker.publish.access.Requester`.
        who_now: tells who the client would be now; None: nobody can.
    """

    _wills: Wills
    message: Message
    _: KW_ONLY
    identity: Identity
    address: str
    session: SessionState | None
    due: int
    is_late: bool = False
    rights: Rights = field(default_factory=Rights)
    who_now: Callable[[], Principal | None] | None = None

    @property
    def principal(self) -> str:
        return self.identity.principal

    @property
    def client_id(self) -> str:
        return self.identity.client_id

    def confirmed(self, tokens: list[Token]) -> None:
        """From the writer; never called, because the publish has no token."""

    def failed(self, token: Token, error: GatewayError) -> None:
        """From the writer: the publish was dropped."""
        del token
        self._wills.publish_failed(self, error)


def _identify(will: Will) -> None:
    """Find out who its client is now. Raises: AccessError when it is nobody."""
    if will.who_now is not None:
        principal = will.who_now()
        if principal is None:
            raise AccessError("the user no longer exists", principal=will.principal)
        if principal.groups != will.identity.groups:
            will.identity = dataclasses.replace(will.identity, groups=principal.groups)
            will.rights.forget()


@dataclass(eq=False, repr=False)
class Wills:
    """Wills that wait."""

    _writer: TurnWriter
    _publisher: Publisher
    _access: Access
    _waiting: dict[Will, None] = field(default_factory=dict[Will, None])
    _by_session: dict[SessionState, Will] = field(default_factory=dict[SessionState, Will])

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, will: Will) -> None:
        """The client is gone: publish its will now, or when it is due."""
        if will.due <= self._writer.elapsed():
            self._publish(will)
        else:
            self._wait(will)

    def cancel(self, session: SessionState) -> None:
        """The client came back before the delay was over [MQTT-3.1.3-9 of 5.0]."""
        will = self._by_session.pop(session, None)
        if will is None:
            return
        if will.is_late:
            will.session = None  # it has another will now, or none
        else:
            self._waiting.pop(will, None)

    def session_ended(self, session: SessionState) -> None:
        """The session ended before the delay did: its will is published now."""
        will = self._by_session.pop(session, None)
        if will is not None:
            self._waiting.pop(will, None)
            will.session = None
            self._publish(will)

    def publish_due(self, elapsed: int) -> None:
        """Publish those whose time has come."""
        for will in [will for will in self._waiting if will.due <= elapsed]:
            del self._waiting[will]
            if will.session is not None:
                self._by_session.pop(will.session, None)
            self._publish(will)

    def forget_rights(self) -> None:
        """Rights have changed."""
        for will in self._waiting:
            will.rights.forget()

    def publish_failed(self, will: Will, error: GatewayError) -> None:
        """It was not written: for lack of room it is tried later, otherwise never."""
        if error.retryable:
            session = will.session
            if session is not None and session.stored.will is not will.message:
                will.session = None  # the client came back while it was being written
            will.is_late = True
            will.due = self._writer.elapsed() + RETRY_US
            self._wait(will, error)
        else:
            self._lose(will, error)

    def _wait(self, will: Will, error: GatewayError | None = None) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._lose(will, error or FlowControlError(f"{WAITING_MAX} wills are waiting"))
        else:
            self._waiting[will] = None
            if will.session is not None:
                self._by_session[will.session] = will

    @staticmethod
    def _lose(will: Will, error: Exception) -> None:
        _log.error(
            "client=%s peer=%s destination=%s will=lost: %s",
            will.client_id,
            will.address,
            will.message.destination,
            error,
        )

    def _publish(self, will: Will) -> None:
        try:
            self._add(will)
        except GatewayError as error:
            self.publish_failed(will, error)
        except FAILURES as error:  # one client's will must not hold up the others
            self._lose(will, failure_of(error))

    def _add(self, will: Will) -> None:
        writer, publisher = self._writer, self._publisher
        now = writer.now()
        message = will.message
        # Its lifetime begins now (MQTT 5.0 section 3.1.3.2.4).
        life = message.expires_at - message.received_at if message.expires_at else 0
        expires_at = now + life if message.expires_at else 0
        message = msgspec.structs.replace(message, received_at=now, expires_at=expires_at)
        writer.check_writable()
        _identify(will)
        message = self._access.check_publish(will, message)
        publisher.resolve(
            message.destination, will.principal
        )  # a new queue is not part of this unit
        if message.retain:
            publisher.retained.check_room(message, will.principal)
        turn = writer.turn
        first = len(turn.operations)
        undo: list[Callable[[], None]] = []
        publisher.publish(message, origin_of(will.identity), undo)
        writer.own_sequences += 1
        session = will.session
        if session is not None and not session.is_removed:
            before = session.stored
            cleared = session.stored = msgspec.structs.replace(before, will=None, will_delay=0)
            session.charge()
            turn.operations.append(PutSession(cleared))

            def keep() -> None:
                if session.stored is cleared:  # the client is not back with another will
                    session.stored = before
                    session.charge()

            undo.append(keep)
        turn.unit(first, will, undo=undo)
        turn.synced = True
        writer.schedule()
