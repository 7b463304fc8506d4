"""How a process of the sink steps back: clients wait for the gateway, nobody waits for the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Linux shares a processor out among sessions first, and weighs niceness only within one (sched(7), "The autogroup
#: feature"). Each of our processes is a session of its own: without this, niceness would mean nothing.
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def step_back(niceness: int) -> None:
    """Add *niceness* (0 to 19) to this process's own, and to its session's, of which it must be the leader."""
    own = os.nice(niceness)
    try:
        _AUTOGROUP.write_text(str(own))
    except OSError:
        pass  # no such system, the feature is off, or a control group decides: niceness alone, then
