"""CONNECT: the version, the heart-beats, the client, and the broker's answer. STOMP 1.2 "Connecting"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, final

import msgspec

from tidegate.spi import (
    Broker,
    ClientPeer,
    ConnectRequest,
    ConnectResult,
    GatewayError,
    PeerProtocolError,
    RequestError,
    format_duration,
)
from tidegate_protocols.stomp._heartbeat import parse
from tidegate_protocols.stomp.codec.frames import Frame, Version
from tidegate_protocols.stomp.codec.messages import PROTOCOL
from tidegate_protocols.transport import Link, nobody

logger = logging.getLogger("tidegate.stomp")

#: Newest first: the highest common one is used (STOMP 1.2 "Protocol Negotiation").
_VERSIONS: Final = (Version.V1_2, Version.V1_1, Version.V1_0)
#: The ``version`` header of the ERROR when there is no common version.
SUPPORTED: Final = ",".join(version.value for version in reversed(_VERSIONS))


@final
class NoCommonVersionError(PeerProtocolError):
    """The client supports no version that we support."""


class Handshake(msgspec.Struct, frozen=True):
    """What a CONNECT or STOMP frame says.

    Attributes: version; client_id, username ("" when not given); password (None when not given);
    heart_beat: milliseconds between what the client can send, and wants to receive.
    """

    version: Version
    client_id: str
    username: str
    password: bytes | None
    heart_beat: tuple[int, int]

    def request(self, link: Link, listener: str, *, anonymous_allowed: bool) -> ConnectRequest:
        """The same, as a request to the broker."""
        return ConnectRequest(
            protocol=PROTOCOL,
            version=self.version.value,
            client_id=self.client_id,
            peer=link.peer,
            listener=listener,
            username=self.username,
            password=self.password,
            anonymous_allowed=anonymous_allowed,
            tls_subject=link.tls_subject,
            tls_principal=link.tls_principal,
        )


def read_handshake(frame: Frame, *, bound: Version | None = None) -> Handshake:
    """Check and read a CONNECT or STOMP frame.

    ``host`` is accepted and ignored: there is one virtual host.

    Args: bound: the only version allowed, when a WebSocket subprotocol has fixed it.
    Raises: PeerProtocolError.
    """
    headers = frame.headers
    if frame.body:
        raise PeerProtocolError(f"{frame.command} must not have a body")
    version = _negotiate(headers.get("accept-version"), bound)
    passcode = headers.get("passcode")
    return Handshake(
        version=version,
        client_id=headers.get("client-id", ""),
        username=headers.get("login", ""),
        password=None if passcode is None else passcode.encode(),
        # STOMP 1.0 has no heart-beats, and a missing header means 0,0 (STOMP 1.2 "Heart-beating").
        heart_beat=(0, 0) if version is Version.V1_0 else parse(headers.get("heart-beat", "0,0")),
    )


def _negotiate(accepted: str | None, bound: Version | None) -> Version:
    # STOMP 1.2 "Protocol Negotiation": a missing header means only 1.0.
    wanted = {part.strip(" ") for part in ("1.0" if accepted is None else accepted).split(",")}
    if bound is not None:
        if bound.value in wanted:
            return bound
        raise NoCommonVersionError(
            f"the WebSocket subprotocol requires STOMP {bound.value}, but "
            "accept-version does not include it"
        )
    for version in _VERSIONS:
        if version.value in wanted:
            return version
    raise NoCommonVersionError(f"Supported protocol versions are {SUPPORTED.replace(',', ' ')}")


@final
class Admission:
    """CONNECT, and the broker's answer to it, within a time limit. Owned by one session.

    Args:
        link, loop: of the session.
        listener: its address, known once it is bound; anonymous_allowed: its rule.
        timeout_s: from now until the client is accepted.
        accept: called with the broker's answer; refuse: called when the client is not let in.

    Attributes: handshake: the CONNECT's contents, once received.
    """

    __slots__ = (
        "_accept",
        "_anonymous_allowed",
        "_broker",
        "_link",
        "_listener",
        "_loop",
        "_refuse",
        "_task",
        "_timeout_s",
        "_timer",
        "handshake",
    )

    def __init__(
        self,
        broker: Broker,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        *,
        listener: Callable[[], str],
        anonymous_allowed: bool,
        timeout_s: float,
        accept: Callable[[Handshake, ConnectResult], None],
        refuse: Callable[[GatewayError], None],
    ) -> None:
        self._broker = broker
        self._link = link
        self._loop = loop
        self._listener = listener
        self._anonymous_allowed = anonymous_allowed
        self._timeout_s = timeout_s
        self._accept = accept
        self._refuse = refuse
        self._timer = loop.call_later(timeout_s, self._timed_out)
        self._task: asyncio.Task[None] | None = None
        self.handshake: Handshake | None = None

    @property
    def version(self) -> Version:
        """The negotiated version."""
        return Version.V1_0 if self.handshake is None else self.handshake.version

    def connect(self, frame: Frame, peer: ClientPeer, *, bound: Version | None) -> Version:
        """CONNECT or STOMP was received: ask the broker. Args: peer: the session.

        Raises: PeerProtocolError.
        """
        self.handshake = handshake = read_handshake(frame, bound=bound)
        self._task = self._loop.create_task(self._ask(handshake, peer))
        return handshake.version

    async def _ask(self, handshake: Handshake, peer: ClientPeer) -> None:
        accept, refuse = self._accept, self._refuse  # also for an answer that comes too late
        try:
            request = handshake.request(
                self._link, self._listener(), anonymous_allowed=self._anonymous_allowed
            )
            result = await self._broker.connect(request, peer)
            self._timer.cancel()
            accept(handshake, result)
        except GatewayError as error:
            refuse(error)
        except Exception:
            logger.exception("connect failed, connection aborted peer=%s", self._link.peer)
            self._link.abort()
        finally:
            self._task = None

    def _timed_out(self) -> None:
        what = "no answer to CONNECT" if self.handshake is None else "no CONNECT received"
        self._refuse(RequestError(f"{what} within {format_duration(self._timeout_s)}"))

    def stop(self) -> None:
        """Nobody waits for the answer any more. Idempotent."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def forget(self) -> None:
        """The link is gone, too: call nobody any more."""
        self.stop()
        self._accept = self._refuse = nobody
