"""Changing a gateway that runs: its configuration, and whether it lets clients in."""

from __future__ import annotations

import msgspec


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
