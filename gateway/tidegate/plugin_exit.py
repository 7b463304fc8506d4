"""``sys.exit()`` in a plugin is an error of that plugin, never a silent end of the gateway.

Python passes SystemExit through every ``except Exception`` and through the event loop, so a plugin
that ends itself as a script would takes the process with it, without a line in the log.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING

from tidegate.spi import PluginError

if TYPE_CHECKING:
    from collections.abc import Generator


class PluginExitError(PluginError):
    """A plugin called ``sys.exit()``. Attributes: plugin, problem, code (what it passed)."""

    def __init__(self, plugin: str, error: SystemExit) -> None:
        super().__init__(plugin, _problem(error))
        self.code = error.code


@contextlib.contextmanager
def exit_is_error(plugin: str) -> Generator[None]:
    """Turn a SystemExit that leaves the block into an error of *plugin*. Raises: PluginExitError."""
    try:
        yield
    except SystemExit as error:
        raise PluginExitError(plugin, error) from error


def _problem(error: SystemExit) -> str:
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({frames[-1].filename}:{frames[-1].lineno})"
    return (
        f"it called sys.exit({'' if error.code is None else repr(error.code)}){place}; a plugin"
        " raises an error and leaves it to the gateway to stop"
    )
