"""Who owns something that several gateways can reach: a name for people, which programs can check.

A killed gateway leaves its name behind. If it was a process of this machine that no longer exists,
nobody needs to wait for it.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def process_identity() -> str:
    """Identifies this process among all since this machine booted; "" when that is unknown."""
    return _identity(os.getpid())


def _identity(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers on one machine share its boot id but not their process ids.
        space = Path("/proc/self/ns/pid").readlink().name
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    # A zombie, whose parent has not collected its exit status, does nothing any more.
    return "" if state in "ZX" else f"{boot}/{space}/{pid}/{fields[18]}"


def make_owner(gateway_name: str) -> str:
    """What to write down as owner, for people and for :func:`is_gone`. One line."""
    name = "".join("_" if c == "|" or c < " " else c for c in gateway_name)[:100]
    return f"{name}|{socket.gethostname()}|{secrets.token_hex(4)}|{process_identity()}"


def is_gone(owner: str) -> bool:
    """Tell whether *owner* was a process of this machine that no longer exists."""
    identity = owner.rpartition("|")[2]
    parts = identity.split("/")
    if len(parts) != 4 or not parts[2].isdigit():
        return False
    mine = process_identity().split("/")
    if mine[:2] != parts[:2]:
        return False
    return _identity(int(parts[2])) != identity


def describe(owner: str) -> str:
    """The owner in words for people: gateway and machine."""
    parts = owner.split("|")
    return f"{parts[0]} on {parts[1]}" if len(parts) >= 2 else owner or "nobody"
