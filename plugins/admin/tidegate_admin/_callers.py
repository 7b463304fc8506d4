"""Who asks: the token file's reader, or a user. Passwords are not checked for each request."""

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
#: Users that are remembered; of more, those that have asked for nothing for longest log in again.
_REMEMBERED_MAX: Final = 1000
#: For how long an accepted password counts without being checked again.
_REMEMBERED_S: Final = 60.0


class LoginError(AccessError):
    """Nobody knows who it is: other credentials might help."""


class Callers:
    """Attributes: token: of the token file, "" where there is none; address: of the listener, for authenticators."""

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
            # A user's token stands in the place of the password, as it does for other clients.
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
        """What accepted credentials are remembered by: not by themselves."""
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.digest()
