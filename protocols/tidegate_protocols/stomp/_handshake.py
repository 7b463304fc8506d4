"""CONNECT: which version, which heart-beats, who it is. STOMP 1.2 "Connecting"."""

from __future__ import annotations

from typing import Final, final

import msgspec

from tidegate.spi import ConnectRequest, PeerProtocolError
from tidegate_protocols.stomp._heartbeat import parse
from tidegate_protocols.stomp.codec.frames import Frame, Version
from tidegate_protocols.stomp.codec.messages import PROTOCOL
from tidegate_protocols.transport import Link

#: Newest first: the highest common one is used (STOMP 1.2 "Protocol Negotiation").
_VERSIONS: Final = (Version.V1_2, Version.V1_1, Version.V1_0)
#: The value of the ``version`` header of the ERROR when none is common.
SUPPORTED: Final = ",".join(version.value for version in reversed(_VERSIONS))


@final
class NoCommonVersionError(PeerProtocolError):
    """The client speaks no version that we speak."""


class Handshake(msgspec.Struct, frozen=True):
    """What a CONNECT or STOMP frame says.

    Attributes: version; client_id, username ("" when not given); password (None when not given);
    heart_beat: milliseconds the client can send, and wants to receive.
    """

    version: Version
    client_id: str
    username: str
    password: bytes | None
    heart_beat: tuple[int, int]

    def request(self, link: Link, listener: str, *, anonymous_allowed: bool) -> ConnectRequest:
        """The same as the broker wants to hear it."""
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

    Args: bound: the only version allowed, where a WebSocket subprotocol has fixed it.
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
            f"the WebSocket subprotocol binds this connection to STOMP {bound.value}, "
            "which accept-version does not have"
        )
    for version in _VERSIONS:
        if version.value in wanted:
            return version
    raise NoCommonVersionError(f"Supported protocol versions are {SUPPORTED.replace(',', ' ')}")
