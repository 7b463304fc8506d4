"""Standard streams for a process that was started without them."""

from __future__ import annotations

import os
import sys


def have_standard_streams() -> None:
    """Open those of the descriptors 0 to 2 that are closed, for nothing. To be called first.

    Else the first files and sockets that are opened get these numbers: what anybody prints goes
    there, into a data file perhaps, and the event loop ends the process rather than close one.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
