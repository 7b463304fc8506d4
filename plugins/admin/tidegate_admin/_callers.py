"""Identifies callers: by the token file, or as a user. Accepted passwords are remembered."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from typing import Final

from tidegate.spi import AccessError, ConnectRequest, Identity
from tidegate.spi.clients.bind import host_of
from tidegate.spi.clients.operators import Caller, OperatorDesk, local_operator
from tidegate_admin._protocol import Credentials

PROTOCOL: Final = "admin"
#: Users remembered; beyond this, the least recently active must log in again.
_REMEMBERED_MAX: Final = 1000
#: How long an accepted password counts without another check.
_REMEMBERED_S: Final = 60.0


class LoginError(AccessError):
    """The caller is unknown: other credentials might help."""


class Callers:
    """Attributes: token: the token file's, "" for none; address: the listener's."""

    def __init__(self, desk: OperatorDesk, token: str, address: str) -> None:
        self.token = token
        self._desk = desk
        self.address = address
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    async def identity(self, peer: str, shown: Credentials) -> Identity:
        """Raises: LoginError; FlowControlError, StoreUnavailableError."""
        if self.token and hmac.compare_digest(shown.token.encode(), self.token.encode()):
            return Identity(local_operator(os.getuid()), frozenset(), "", host_of(peer), PROTOCOL)
        username, password = shown.username, shown.password
        if shown.token:
            # A user's token takes the place of the password, as for other clients.
            username, password = "", shown.token.encode()
        if password is None:
            raise LoginError("credentials are required")
        now = asyncio.get_running_loop().time()
        digest = self._digest(host_of(peer), username, password)
        until, caller = self._known.get(digest, (0.0, None))
        try:
            if caller is None or until < now:
                self._known.pop(digest, None)
                caller = await self._desk.log_in(
                    ConnectRequest(
                        protocol=PROTOCOL,
                        version="1",
                        client_id="",
                        peer=peer,
                        listener=self.address,
                        username=username,
                        password=password,
                    )
                )
                self._known[digest] = (now + _REMEMBERED_S, caller)
                if len(self._known) > _REMEMBERED_MAX:
                    self._known.popitem(last=False)
            self._known.move_to_end(digest)
            return caller.identity_now()
        except AccessError as error:
            self._known.pop(digest, None)
            raise LoginError(error.problem, principal=error.principal) from None

    def _digest(self, *parts: str | bytes) -> bytes:
        """A digest to remember accepted credentials by, instead of the credentials."""
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()
