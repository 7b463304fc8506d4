"""Operators with credentials of users: authorized like clients, but without connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.broker.publish.access import Rights
from tidegate.broker.sessions.authentication import Vouched
from tidegate.spi import AccessError, Identity


@dataclass(slots=True)
class LoggedIn:
    """A :class:`tidegate.spi.clients.operators.Caller`. What it may do is asked each time.

    Args: vouched: by whom; identity: when it logged in; now: microseconds since the epoch.
    """

    vouched: Vouched
    identity: Identity
    now: Callable[[], int]
    rights: Rights = field(default_factory=Rights)
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = self.identity.address

    @property
    def principal(self) -> str:
        return self.identity.principal

    def identity_now(self) -> Identity:
        """See Caller."""
        principal, expires_at = self.vouched.now(), self.vouched.principal.expires_at
        if principal is None or (expires_at and expires_at <= self.now()):
            raise AccessError(
                "these credentials are no longer valid", principal=self.identity.principal
            )
        return dataclasses.replace(self.identity, groups=principal.groups)
