"""What the process ``tidegate`` does: which command it is, and how it ends.

``run`` as service files spell it goes straight to the gateway: the library that reads command
lines, with all that it brings, takes longer to import than the gateway does.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tidegate._logging import LogLevel
from tidegate.cli._exit import ExitCode, Failure, failure_of
from tidegate.cli._run import RunFailed, run_gateway
from tidegate.cli._streams import have_standard_streams
from tidegate.config import ResolvedConfig
from tidegate.spi import RequestError
from tidegate.spi.private_files import closed_umask

_log = logging.getLogger("tidegate.cli")

#: Set by the shell convention: 128 + the number of SIGINT.
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments* (default: the process's); returns the exit code."""
    have_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with closed_umask():
            code = _carry_out(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (`| head`); it has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        return _report(error)
    return code


def _carry_out(arguments: Sequence[str]) -> int:
    plain = _plain_run(arguments)
    if plain is None:
        from tidegate.cli._app import call

        gc.enable()
        return call(arguments)
    run_gateway(*plain)
    return ExitCode.OK


def _plain_run(arguments: Sequence[str]) -> tuple[Path | None, LogLevel | None] | None:
    """What ``run`` is given; None: another command, or anything that typer must speak about."""
    if arguments[:1] != ["run"] or len(arguments) % 2 == 0:
        return None
    config, level = None, None
    for name, value in zip(arguments[1::2], arguments[2::2], strict=True):
        if name in ("--config", "-c") and not value.startswith("-"):
            config = Path(value)
        elif name == "--log-level" and value in {known.value for known in LogLevel}:
            level = LogLevel(value)
        else:
            return None
    return config, level


def _report(error: Exception) -> int:
    """Say on stderr what went wrong, in one line; the trace too when we did not expect it."""
    config: ResolvedConfig | None = None
    if isinstance(error, RunFailed):
        config, error = error.config, error.error
    shown: Any = error
    if hasattr(shown, "format_message") and hasattr(shown, "exit_code"):  # typer's usage errors
        context = getattr(shown, "ctx", None)
        command = context.command_path if context else "tidegate"
        # Typer has pydantic check values, whose errors begin with this.
        message: str = shown.format_message().replace(": Value error, ", ": ")
        if message.startswith("Usage:"):  # a group without a command: print its help
            sys.stderr.write(message.rstrip("\n") + "\n")
            return ExitCode.CONFIG
        text = f"{' '.join(message.split())} (see `{command} --help`)"
        if isinstance(
            error.__cause__, RequestError
        ):  # from the gateway: our help has nothing to add
            text = " ".join(str(error.__cause__).split())
        failure = Failure(ExitCode.CONFIG, text)
    else:
        failure = failure_of(error, config)
    if failure.code is ExitCode.UNEXPECTED:
        _log.error("unexpected error", exc_info=error)
    sys.stderr.write(f"tidegate: error: {failure.text}\n")
    return failure.code
