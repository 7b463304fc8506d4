"""Who owns something that several gateways can reach: named for people, and found gone by machines.

A gateway that was killed leaves its name behind. When it was a process of this machine that no longer
exists, nobody needs to wait for it.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def process_identity() -> str:
    """This process among all of this machine since it was started, or "" when that is unknown."""
    return _identity(os.getpid())


def _identity(pid: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers of one machine share its boot id but not their process ids.
        space = Path("/proc/self/ns/pid").readlink().name
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    # What is left of a process whose parent has not asked how it ended does nothing any more.
    return "" if state in "ZX" else f"{boot}/{space}/{pid}/{fields[18]}"


def make_owner(gateway_name: str) -> str:
    """What to write down: who owns it, for people and for :func:`is_gone`. One line."""
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
    """An owner for people: gateway and machine."""
    parts = owner.split("|")
    return f"{parts[0]} on {parts[1]}" if len(parts) >= 2 else owner or "nobody"
