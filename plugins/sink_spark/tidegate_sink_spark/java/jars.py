"""Gets the jars of the table format: from the cache, by Spark's package resolver, or by a plain download.

They are fetched once into the user's cache, and every start after that works offline: Spark
gets them as ``spark.jars``. Of ``delta-spark``'s 33 dependencies only ``delta-storage`` is missing
from PySpark, so the other 77 MB are excluded. Iceberg's runtime is one jar that holds all it needs.

Two ways, because each has failed where the other worked. Spark's resolver (``spark.jars.packages``,
by Ivy) knows the settings of Ivy and the local Maven repository, but gives up when that repository
holds a ``.pom`` without its jar. A plain download honours proxies and certificates from the
environment, as everything in Python does.

No repository is named here: the plain download uses the one the user configured, else the one that
Ivy, which comes with PySpark, has as its default in ``repository.properties``.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import os
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from tidegate.spi import ConfigError
from tidegate.spi.private_files import WRITABLE, make_private_directory, warn_of_others
from tidegate_sink_spark._options import SparkSinkOptions, refuse
from tidegate_sink_spark.java.runtime import spark_home
from tidegate_sink_spark.job.session import temporary_files_in

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 180.0  # seconds for the resolver, Java's start included
READ_TIMEOUT: Final = 30.0  # seconds without a byte
JAR_BYTES_MAX: Final = 100 << 20
REPOSITORY_VARIABLE: Final = "TIDEGATE_MAVEN_REPOSITORY"

#: Ivy patterns for what ``delta-spark`` declares and PySpark has already, or does not need.
_EXCLUDED: Final = (
    "com.*:*",
    "commons-*:*",
    "io.airlift:*",
    "io.delta:delta-kernel*",
    "io.unitycatalog:*",
    "javax.*:*",
    "org.*:*",
)


class JarsError(Exception):
    """The jars could not be fetched. The text says which ways were tried and what to do."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar in a Maven repository. Attributes: sha256: of the only jar accepted; "": any."""

    group: str
    name: str
    version: str
    sha256: str = ""

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"


#: Spark 4.1.2 and newer break Delta before 4.3 at the tenth commit (delta-io/delta#6867).
ARTIFACTS: Final = (
    Artifact(
        "io.delta",
        "delta-spark_4.1_2.13",
        "4.4.0",
        "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
    ),
    Artifact(
        "io.delta",
        "delta-storage",
        "4.4.0",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
)


#: One jar that holds all it needs. There is none for Spark 4.2.
ICEBERG: Final = (
    Artifact(
        "org.apache.iceberg",
        "iceberg-spark-runtime-4.1_2.13",
        "1.11.0",
        "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242",
    ),
)


def artifacts_of(table_format: str) -> tuple[Artifact, ...]:
    """The jars that a table format needs; none for one that is written without Java."""
    return {"delta": ARTIFACTS, "iceberg": ICEBERG}.get(table_format, ())


#: Values of the option ``jars`` that are not paths.
_FETCHED: Final = ("auto", "packages", "download")


def check_choice(options: SparkSinkOptions) -> None:
    """Check the options about jars. Raises: ConfigError."""
    choice, repository = options.jars, options.maven_repository
    if repository and not is_safe(repository):
        raise ConfigError(_unsafe(repository), key="maven_repository")
    if choice in _FETCHED:
        return
    for path in _listed(choice):
        if not path.is_file():
            raise ConfigError(f"{path} is not there", key="jars")
    refuse(
        options,
        ("jars_cache", "maven_repository"),
        "has no effect: `jars` names files, so none are fetched; remove one of the two",
    )


def _listed(choice: str) -> tuple[Path, ...]:
    return tuple(Path(item.strip()).expanduser() for item in choice.split(",") if item.strip())


def cache_directory(option: str, environ: Mapping[str, str]) -> Path:
    """Where jars are kept: the option, else the user's cache directory."""
    if option:
        return Path(option).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidegate" / "jars"


def is_kept(options: SparkSinkOptions) -> bool:
    """Tell whether :func:`cache_directory` is used; it is not where `jars` names files."""
    return options.jars in _FETCHED


def jars_of(options: SparkSinkOptions, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """:func:`ensure_jars` for a sink. Args: environment: of the job. Raises: JarsError, OSError."""
    return ensure_jars(
        options.jars,
        cache_directory(options.jars_cache, environment),
        repository=options.maven_repository,
        environment=environment,
        table_format=options.format,
    )


def ensure_jars(
    choice: str,
    cache: Path,
    *,
    repository: str,
    environment: Mapping[str, str],
    table_format: str = "delta",
) -> tuple[Path, ...]:
    """The jars for ``spark.jars``, fetched when they are not in *cache*. Blocking.

    Args:
        choice: the option ``jars``.
        repository: the option ``maven_repository``.
        environment: of the job (JAVA_HOME, SPARK_HOME); ways to fetch read it too.
        table_format: as in :func:`artifacts_of`.
    Raises: JarsError, OSError.
    """
    artifacts = artifacts_of(table_format)
    if choice not in _FETCHED:
        return _listed(choice)
    wanted = tuple(cache / artifact.file_name for artifact in artifacts)
    make_private_directory(cache)
    warn_of_others(cache, "directory of jars", among=WRITABLE)  # what is there runs in the job
    if all(is_it(artifact, cache / artifact.file_name) for artifact in artifacts):
        return wanted
    ways: dict[str, Callable[[], None]] = {
        "packages": lambda: resolve(cache, repository, environment, artifacts),
        "download": lambda: download(cache, repository, environment, artifacts),
    }
    failures: list[str] = []
    for name in ways if choice == "auto" else (choice,):
        log.info("jars fetch way=%s directory=%s", name, cache)
        try:
            ways[name]()
        except (JarsError, OSError, subprocess.SubprocessError) as exc:
            failures.append(f"{name}: {exc}")
            log.warning("jars way=%s problem=%r", name, str(exc))
            continue
        if all(is_it(artifact, cache / artifact.file_name) for artifact in artifacts):
            return wanted
        failures.append(f"{name}: no whole jars, or other ones than those that were tried with it")
    raise JarsError(
        f"{table_format.capitalize()}'s jars could not be fetched ({'; '.join(failures)}); put "
        f"{' and '.join(path.name for path in wanted)} into {cache}, or set maven_repository"
    )


def is_whole(jar: Path) -> bool:
    """Tell whether *jar* is a complete zip file: its directory is at its end."""
    return jar.is_file() and zipfile.is_zipfile(jar)


def is_it(artifact: Artifact, jar: Path) -> bool:
    """Tell whether *jar* is complete, and the right one: its code runs in the job."""
    if not is_whole(jar):
        return False
    if not artifact.sha256:
        return True
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256


# ------------------------------------------------------------------------- Spark's package resolver
def resolve(
    cache: Path,
    repository: str,
    environment: Mapping[str, str],
    artifacts: Sequence[Artifact] | None = None,
) -> None:
    """Let spark-submit resolve ``spark.jars.packages`` into an Ivy directory, once.

    Args: artifacts: None: Delta's.
    Raises: JarsError, OSError, subprocess.SubprocessError.
    """
    artifacts = ARTIFACTS if artifacts is None else artifacts
    with tempfile.TemporaryDirectory(prefix=".ivy-", dir=cache) as directory:
        ivy = Path(directory)
        program = ivy / "nothing.py"
        program.write_text("")
        command = [
            str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"),
            *("--master", "local[1]"),
            *("--conf", f"spark.jars.ivy={ivy}"),
            *("--packages", ",".join(artifact.coordinate for artifact in artifacts)),
            *(("--exclude-packages", ",".join(_EXCLUDED)) if artifacts == ARTIFACTS else ()),
        ]
        configured = configured_repository(repository, environment)
        if configured:
            _check_safe(configured)
            command += ["--repositories", configured]
        done = subprocess.run(
            [*command, str(program)],
            cwd=ivy,
            env={**environment, **temporary_files_in(ivy, environment)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT,
            check=False,
        )
        for artifact in artifacts:
            jar = ivy / "jars" / f"{artifact.group}_{artifact.file_name}"
            if not is_whole(jar):
                raise JarsError(f"Spark's resolver did not bring {jar.name}{_reason(done.stderr)}")
            if not is_it(artifact, jar):
                raise JarsError(f"Spark's resolver brought another {jar.name} (SHA-256)")
            os.replace(jar, cache / artifact.file_name)


def _reason(output: str) -> str:
    for line in output.splitlines():
        if "unresolved dependency" in line or "NOT FOUND" in line or "Exception" in line:
            return f" ({line.strip().strip(':').strip()[:200]})"
    return ""


# ---------------------------------------------------------------------------------- plain download
def download(
    cache: Path,
    repository: str,
    environment: Mapping[str, str],
    artifacts: Sequence[Artifact] | None = None,
) -> None:
    """Download the jars and compare their digests with the repository's and ours.

    Args: artifacts: None: Delta's.
    Raises: JarsError, OSError.
    """
    base = configured_repository(repository, environment) or ivy_repository(spark_home() / "jars")
    if not base:
        raise JarsError(f"no repository is known; set maven_repository or {REPOSITORY_VARIABLE}")
    for artifact in ARTIFACTS if artifacts is None else artifacts:
        _download_one(f"{base.rstrip('/')}/{artifact.path}", cache / artifact.file_name, artifact)


def _download_one(url: str, path: Path, artifact: Artifact) -> None:
    _check_safe(url)
    handle, name = tempfile.mkstemp(prefix=".jar-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _copy(url, file)
            file.flush()
            os.fsync(file.fileno())
        expected = _published_digest(f"{url}.sha1")
        if expected and expected != digest:
            raise JarsError(f"{url} has SHA-1 {digest} and should have {expected}")
        if not is_whole(temporary):
            raise JarsError(f"{url} is not a whole jar")
        if not is_it(artifact, temporary):
            raise JarsError(f"{url} is another jar than the one that is meant (SHA-256)")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def is_safe(url: str) -> bool:
    """Whether nobody in between can change the download: https, a file, or http on this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "http":
        host = parts.hostname or ""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"
    return parts.scheme in ("https", "file")


def _unsafe(url: str) -> str:
    return f"{url} is neither https nor file: anybody between could answer; take an https address"


def _check_safe(url: str) -> None:
    if not is_safe(url):
        raise JarsError(_unsafe(url))


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, but not to a URL that would be refused if requested directly."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):
        _check_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    """As urlopen: proxies and certificates come from the environment. Raises: JarsError, OSError."""
    return urllib.request.build_opener(_SafeRedirects).open(url, timeout=READ_TIMEOUT)


def _copy(url: str, file: Any) -> str:
    """Copy *url* into *file*; returns its SHA-1 in hexadecimal."""
    digest = hashlib.sha1(usedforsecurity=False)  # what Maven repositories publish
    size_bytes = 0
    with _open(url) as answer:
        while chunk := answer.read(1 << 16):
            size_bytes += len(chunk)
            if size_bytes > JAR_BYTES_MAX:
                raise JarsError(f"{url} is larger than {JAR_BYTES_MAX} bytes")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _published_digest(url: str) -> str:
    """The digest at *url*, or "" where the repository publishes none."""
    try:
        with _open(url) as answer:
            words = answer.read(200).decode("ascii", "replace").split()
    except urllib.error.URLError as exc:
        missing = exc.code == 404 if isinstance(exc, urllib.error.HTTPError) else False
        if missing or url.startswith("file:"):
            return ""
        raise
    return words[0].lower() if words else ""


def configured_repository(option: str, environ: Mapping[str, str]) -> str:
    """The repository that the user named: option, environment, a mirror in Maven's settings; or ""."""
    if option:
        return option
    if environ.get(REPOSITORY_VARIABLE):
        return environ[REPOSITORY_VARIABLE]
    home = environ.get("HOME")
    return maven_mirror(Path(home) / ".m2" / "settings.xml") if home else ""


def maven_mirror(settings: Path) -> str:
    """The mirror of Maven's central repository in *settings*, or "". Never raises."""
    with contextlib.suppress(OSError, ElementTree.ParseError):
        for mirror in ElementTree.parse(settings).iter():
            if mirror.tag.rpartition("}")[2] != "mirror":
                continue
            fields = {item.tag.rpartition("}")[2]: (item.text or "").strip() for item in mirror}
            patterns = [part.strip() for part in fields.get("mirrorOf", "").split(",")]
            if {"*", "central", "external:*"} & set(patterns) and fields.get("url"):
                return fields["url"]
    return ""


def ivy_repository(jars: Path) -> str:
    """The default repository of the Ivy that PySpark brings, or ""."""
    for jar in sorted(jars.glob("ivy-*.jar")):
        with (
            contextlib.suppress(OSError, KeyError, zipfile.BadZipFile),
            zipfile.ZipFile(jar) as ivy,
        ):
            text = ivy.read("org/apache/ivy/core/settings/repository.properties").decode("latin-1")
            for line in text.splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "ivy.ibiblio.default.artifact.root":
                    return value.strip()
    return ""
