"""Credentials can be shown anywhere without showing the password."""

from tidegate.spi import (
    AccessError,
    Authenticator,
    Authorizer,
    Credentials,
    Interceptor,
    Principal,
)

CREDENTIALS = Credentials("bob", b"s3cret", "client", "stomp", "1.2.3.4:5", "stomp://h:1")


def test_the_password_is_in_no_text() -> None:
    for text in (repr(CREDENTIALS), str(CREDENTIALS), f"{[CREDENTIALS]}"):
        assert "s3cret" not in text
        assert "bob" in text


def test_an_extension_is_known_by_its_methods() -> None:
    class Door:
        async def authenticate(self, credentials: Credentials) -> Principal | None:
            raise AccessError("closed", principal=credentials.username)

    door = Door()
    assert isinstance(door, Authenticator)
    assert not isinstance(door, Authorizer)
    assert not isinstance(door, Interceptor)
