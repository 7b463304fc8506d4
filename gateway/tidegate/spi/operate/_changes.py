"""Changing a gateway that runs: its configuration, and whether it lets clients in."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

#: The longest that a drain waits for clients, in seconds.
DRAIN_S_MAX: Final = 86_400
#: Characters of a server reference.
REFERENCE_MAX: Final = 1000


class ReloadConfiguration(msgspec.Struct, frozen=True, tag="reload-configuration"):
    """Read the configuration file anew, check it as a whole, and apply what can change while the gateway runs.

    An error in the file, or in one that it names, changes nothing; nor does a new listener that cannot bind.

    Attributes: check_only: only say what would change.
    """

    check_only: bool = False


class Change(msgspec.Struct, frozen=True):
    """One thing that is other than before, or is not. Attributes: key: where it is in the file; what: in words."""

    key: str
    what: str


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """What came of it.

    Attributes:
        path: of the file; "": the gateway has none, and only files that listeners and extensions have were read.
        changed: what counts now (with ``check_only``: would count).
        left: what the file says and does not count before the next start, or not for all, and why.
    """

    path: str
    changed: tuple[Change, ...] = ()
    left: tuple[Change, ...] = ()


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Let nobody in any more, and those that are there go when their work is done: see DrainState.

    It begins at once and goes on by itself; asked again, it goes on in the new way. It lasts until `undrain` or
    the gateway's end.

    Attributes:
        server_reference: where clients are to go, ``host:port``; "": they are not told. is_moved: for good.
        timeout_s: how long they may take to acknowledge what they have; then they are disconnected all the same.
    """

    server_reference: Annotated[str, msgspec.Meta(max_length=REFERENCE_MAX)] = ""
    is_moved: bool = False
    timeout_s: Annotated[float, msgspec.Meta(ge=0, le=DRAIN_S_MAX)] = 30.0


class Undrain(msgspec.Struct, frozen=True, tag="undrain"):
    """Let clients in again, and serve those that have not gone."""


class ShowDrain(msgspec.Struct, frozen=True, tag="show-drain"):
    """How far a drain is."""


class DrainState(msgspec.Struct, frozen=True, tag="drain-state"):
    """Whether clients are let in.

    Attributes: connections: clients that are there; in_flight: messages that they have not acknowledged; the rest as
        in Drain.
    """

    is_draining: bool
    connections: int
    in_flight: int
    server_reference: str = ""
    is_moved: bool = False
