"""Apache's own REST catalog server on loopback, with a door in front of it that wants a token.

The server is what Iceberg publishes for tests of clients (``iceberg-open-api``, classifier ``test-fixtures``);
it keeps its catalog in SQLite. The door is a proxy in this process: the server itself takes any token, and
cannot be away and come back.
"""

import http.client
import http.server
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from free_ports import free_port

from tidegate_sink_spark.java import jars as _jars
from tidegate_sink_spark.java import runtime as _runtime

TOKEN = "t0ken-of-the-test"
START_TIMEOUT = 120.0
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD")


@dataclass(frozen=True)
class _Classified(_jars.Artifact):
    """One of the further jars of an artifact."""

    classifier: str = ""

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}-{self.classifier}.jar"


_ICEBERG = "org.apache.iceberg"
_JETTY = "12.1.5"
_SERVER = (
    _Classified(_ICEBERG, "iceberg-open-api", "1.11.0", classifier="test-fixtures"),
    _Classified(_ICEBERG, "iceberg-core", "1.11.0", classifier="tests"),
    *(
        _jars.Artifact(_ICEBERG, f"iceberg-{name}", "1.11.0")
        for name in ("api", "bundled-guava", "common", "core")
    ),
    *(
        _jars.Artifact("org.eclipse.jetty", f"jetty-{name}", _JETTY)
        for name in ("http", "io", "security", "server", "session", "util")
    ),
    *(
        _jars.Artifact("org.eclipse.jetty.compression", f"jetty-compression-{name}", _JETTY)
        for name in ("common", "gzip", "server")
    ),
    _jars.Artifact("org.eclipse.jetty.ee10", "jetty-ee10-servlet", _JETTY),
    _jars.Artifact("jakarta.servlet", "jakarta.servlet-api", "6.0.0"),
    _jars.Artifact("com.fasterxml.jackson.core", "jackson-annotations", "2.21"),
    _jars.Artifact("com.fasterxml.jackson.core", "jackson-core", "2.21.3"),
    _jars.Artifact("com.fasterxml.jackson.core", "jackson-databind", "2.21.3"),
    _jars.Artifact("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
    _jars.Artifact("org.apache.avro", "avro", "1.12.1"),
    _jars.Artifact("org.apache.httpcomponents.client5", "httpclient5", "5.6.1"),
    _jars.Artifact("org.apache.httpcomponents.core5", "httpcore5", "5.4"),
    _jars.Artifact("org.roaringbitmap", "RoaringBitmap", "1.6.14"),
    _jars.Artifact("org.slf4j", "slf4j-api", "2.0.17"),
    _jars.Artifact("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)
#: The AWS SDK as Iceberg's way to S3 wants it; the way itself Spark's runtime has, and the server has not.
AWS_BUNDLE = _jars.Artifact(_ICEBERG, "iceberg-aws-bundle", "1.11.0")
AWS_OF_SERVER = (
    AWS_BUNDLE,
    _jars.Artifact(_ICEBERG, "iceberg-aws", "1.11.0"),
    _jars.Artifact("dev.failsafe", "failsafe", "3.3.2"),
)


class _Silence:
    """Which requests are not answered, and until when."""

    def __init__(self) -> None:
        self.methods: tuple[str, ...] = ()
        self.over = threading.Event()


def fetched(*artifacts: _jars.Artifact) -> list[Path]:
    """Jars for tests, fetched once into the cache of the user."""
    cache = _jars.cache_directory("", os.environ)
    cache.mkdir(parents=True, exist_ok=True)
    for artifact in artifacts:
        if not _jars.is_it(artifact, cache / artifact.file_name):
            _jars.download(cache, "", os.environ, [artifact])
    return [cache / artifact.file_name for artifact in artifacts]


class RestCatalog:
    """A server that runs. Attributes: uri (of the door)."""

    def __init__(
        self, java: str, directory: Path, settings: Mapping[str, str], *further: Path
    ) -> None:
        """Args: settings: of the catalog behind it, as Iceberg names them; further: jars that it needs."""
        port = free_port()
        own = (_runtime.spark_home() / "jars").glob("hadoop-client-*.jar")
        logging = (_runtime.spark_home() / "jars").glob("jcl-over-slf4j-*.jar")
        jars = [*fetched(*_SERVER), *own, *logging, *further]
        catalog = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{directory / 'catalog.db'}",
            **settings,
        }
        variables = {f"CATALOG_{_variable(key)}": value for key, value in catalog.items()}
        self._log = (directory / "rest.log").open("w")
        self._process = subprocess.Popen(
            [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, jars)),
             "org.apache.iceberg.rest.RESTCatalogServer"],
            cwd=directory,
            env={**os.environ, **variables, "CATALOG_REST_PORT": str(port)},
            stdout=self._log,
            stderr=self._log,
        )  # fmt: skip
        self._wait(port)
        self._behind = port
        self._port = free_port()
        self._door: http.server.ThreadingHTTPServer | None = None
        self.uri = f"http://127.0.0.1:{self._port}"
        self.requests: list[str] = []
        self._silence = _Silence()
        self.set_reachable(True)

    def _wait(self, port: int) -> None:
        end = time.monotonic() + START_TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.1)

    def set_reachable(self, reachable: bool) -> None:
        """Let it accept connections, or refuse them."""
        if not reachable and self._door is not None:
            self._door.shutdown()
            self._door.server_close()
            self._door = None
        if reachable and self._door is None:
            self._door = http.server.ThreadingHTTPServer(
                ("127.0.0.1", self._port), _door_to(self._behind, self.requests, self._silence)
            )
            threading.Thread(target=self._door.serve_forever, daemon=True).start()

    def set_answering(self, answers: bool) -> None:
        """Let it answer; or do what it is asked for, and never say so."""
        self.hang_at(*(() if answers else _METHODS))

    def hang_at(self, *methods: str) -> None:
        """Answer all requests but these. What waits for an answer gets none."""
        self._silence.methods = methods
        self._silence.over.set()
        self._silence.over = threading.Event()

    def close(self) -> None:
        """End it."""
        self.set_answering(True)
        self.set_reachable(False)
        self._process.kill()
        self._process.wait()
        self._log.close()


def _variable(key: str) -> str:
    """The name by which the server takes a setting from its environment."""
    return key.replace("-", "__").replace(".", "_").upper()


def _door_to(
    port: int, requests: list[str], silence: _Silence
) -> type[http.server.BaseHTTPRequestHandler]:
    class Door(http.server.BaseHTTPRequestHandler):
        def _pass(self) -> None:
            requests.append(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                text = b'{"error":{"message":"who are you?","type":"NotAuthorizedException","code":401}}'
                self._answer(401, [("Content-Type", "application/json")], text)
                return
            behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                headers = {k: v for k, v in self.headers.items() if k.lower() != "accept-encoding"}
                behind.request(self.command, self.path, body, headers)
                answer = behind.getresponse()
                text = answer.read()
                if self.command in silence.methods:
                    silence.over.wait()
                    raise ConnectionAbortedError  # whoever asked has gone
                self._answer(answer.status, answer.getheaders(), text)
            finally:
                behind.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() == "content-type":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (TimeoutError, ConnectionError):
                pass  # a client that was killed

    for method in _METHODS:
        setattr(Door, f"do_{method}", Door._pass)
    return Door
