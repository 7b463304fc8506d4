"""One SCRAM exchange (RFC 5802 section 5), as MQTT 5.0's AUTH packets carry it."""

from __future__ import annotations

from typing import Any, Final, cast, final

from scramp import ScramMechanism  # pyright: ignore[reportMissingTypeStubs]  # untyped package
from scramp.utils import ScramException  # pyright: ignore[reportMissingTypeStubs]  # untyped package

from tidegate.spi import AccessError, Principal
from tidegate_auth_file._directory import UserDirectory
from tidegate_auth_file._hashes import Scram
from tidegate_auth_file._verifier import Verifier, prepared_name

#: Longest message of a client. Honest ones have some 200 bytes; preparing a user name takes time
#: proportional to its length, and strangers send it.
MESSAGE_BYTES_MAX: Final = 4096

#: The answer to every failed attempt, so that it does not reveal who exists.
_REFUSED: Final = "wrong user name or password"


@final
class ScramExchange:
    """Implements :class:`tidegate.spi.AuthenticationExchange`.

    Channel binding is not offered: a client that demands it (``p=``) is refused; one that supports
    it (``y``) or does not (``n``) goes on (RFC 5802 section 6).

    Args: nonce: the server's part of it; None: a random one.
    """

    def __init__(self, method: str, users: UserDirectory, nonce: str | None = None) -> None:
        self._method = method
        self._users = users
        self._nonce = nonce
        self._was_asked = False
        self._name = ""
        self._found: Verifier | None = None
        self._server: Any = None
        self._is_over = False
        self._principal: Principal | None = None

    @property
    def claimed(self) -> str:
        """See AuthenticationExchange."""
        return self._name

    @property
    def principal(self) -> Principal | None:
        """See AuthenticationExchange."""
        return self._principal

    async def step(self, data: bytes) -> bytes:
        """See AuthenticationExchange."""
        if self._is_over:
            raise AccessError("this authentication is already over")
        if not data and self._server is None and not self._was_asked:
            self._was_asked = True  # the client speaks first, and may wait to be asked
            return b""
        if len(data) > MESSAGE_BYTES_MAX:
            raise self._refusal(f"a message is longer than {MESSAGE_BYTES_MAX} bytes")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise self._refusal("a message is not UTF-8") from None
        if self._server is None:
            await self._users.refresh()
        try:
            answer = self._first(text) if self._server is None else self._final(text)
        except ScramException as error:
            raise self._refusal(_REFUSED if self._name else str(error)) from None
        except ValueError as error:
            raise self._refusal(str(error)) from None
        return answer.encode()

    def _first(self, text: str) -> str:
        """client-first-message to server-first-message."""
        server = cast("Any", ScramMechanism)(self._method).make_server(
            self._look_up, s_nonce=self._nonce
        )
        _check_name(text)
        server.set_client_first(text)
        self._server = server
        return cast("str", server.get_server_first())

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        # No password fits the made-up keys of an unknown user.
        found, _ = self._users.find(name, self._method)
        self._found = found
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _final(self, text: str) -> str:
        """client-final-message to server-final-message."""
        self._is_over = True
        self._server.set_client_final(text)
        answer = cast("str", self._server.get_server_final())
        assert self._found is not None
        principal = self._users.principal(self._name, Scram(self._found))
        if principal is None:
            raise self._refusal(_REFUSED)  # the file changed meanwhile
        self._principal = principal
        return answer

    def _refusal(self, problem: str) -> AccessError:
        self._is_over = True
        return AccessError(problem, principal=self._name)


def _check_name(client_first: str) -> None:
    """Raises: ValueError for a user name that would take long to prepare, ScramException."""
    for attribute in client_first.split(","):
        if attribute.startswith("n=") and attribute != "n=":
            prepared_name(attribute[2:].replace("=2C", ",").replace("=3D", "="))
