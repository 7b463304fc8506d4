"""Unintended exceptions of a plugin count as its errors; so does ``sys.exit()``, which never ends the gateway silently.

Python passes SystemExit and KeyboardInterrupt through every ``except Exception`` and through the
event loop, so a plugin that ends itself like a script would take the process with it, without a line
in the log. Code that calls a plugin and outlives its exceptions catches :data:`FAILURES`.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TYPE_CHECKING, Final, TypeAlias

from tidegate.spi import GatewayError, PluginContractError, PluginError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_log: Final = logging.getLogger(__name__)

#: What would end the process. While the gateway runs, Ctrl-C is a signal and raises neither.
EXITS: Final = (SystemExit, KeyboardInterrupt)
#: How a call of a plugin may fail. Cancellation is not included: it is the caller's own doing.
FAILURES: Final = (Exception, *EXITS)

Exit: TypeAlias = SystemExit | KeyboardInterrupt

_OF_THE_LOOP: Final = ("asyncio", "uvloop")
_NO_PLUGINS: Final = frozenset({"tidegate", *_OF_THE_LOOP, *sys.stdlib_module_names})
_UNKNOWN: Final = "unknown (called from the event loop)"


class PluginExitError(PluginError):
    """A plugin called ``sys.exit()``. Attributes: plugin, problem, code (what it passed)."""

    def __init__(self, plugin: str, error: Exit) -> None:
        super().__init__(plugin, _problem(error))
        self.code = error.code if isinstance(error, SystemExit) else None


@contextlib.contextmanager
def exit_is_error(plugin: str) -> Generator[None]:
    """Turn a SystemExit that leaves the block into an error of *plugin*. Raises: PluginExitError."""
    try:
        yield
    except SystemExit as error:
        raise PluginExitError(plugin, error) from error


@contextlib.contextmanager
def failure_is_named(plugin: str, what: str) -> Generator[None]:
    """Turn what *plugin* did not mean to raise in the block, where it begins, into an error that names it.

    What it raises on purpose passes, and so does what is raised without any plugin's code. The log has
    the trace. Args: what: was called. Raises: PluginContractError, PluginExitError.
    """
    try:
        with exit_is_error(plugin):
            yield
    except (GatewayError, OSError):
        raise
    except Exception as error:
        place = _place_in_a_plugin(error)
        if not place:
            raise
        _log.error("plugin=%s %s failed", plugin, what, exc_info=error)
        kind, text = type(error).__name__, " ".join(str(error).split())
        raise PluginContractError(plugin, f"{what} failed: {kind}: {text} ({place})") from error


def failure_of(error: Exception | Exit) -> Exception:
    """*error*, one of FAILURES, as it is reported: an exit is an error of its caller."""
    if not isinstance(error, EXITS):
        return error
    told = PluginExitError(_package_of(error), error)
    told.__cause__ = error
    return told


def package_that_ran(error: Exit) -> str | None:
    """The top-level package whose task or callback *error* ended: ``"tidegate"`` for the host's.

    None: it came out of the event loop itself, as Ctrl-C does, and ``call_soon(sys.exit)``.
    """
    return next(_packages(error), None)


def _package_of(error: Exit) -> str:
    """The import package of the plugin in which *error* was raised."""
    return next((name for name in _packages(error) if name != "tidegate"), _UNKNOWN)


def _packages(error: Exit) -> Iterator[str]:
    """The top-level packages of the frames that *error* left, those of the event loop left out."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module: str = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if package not in _OF_THE_LOOP and module != "tidegate.cli._run":
            yield package


def _place_in_a_plugin(error: Exception) -> str:
    """The last frame's line that is neither the host's nor Python's own; "" when there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in _NO_PLUGINS:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def _problem(error: Exit) -> str:
    place = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({frames[-1].filename}:{frames[-1].lineno})"
    if isinstance(error, SystemExit):
        what = f"called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        what = "raised KeyboardInterrupt"
    return f"it {what}{place}; a plugin must raise an error and leave it to the gateway to stop"
