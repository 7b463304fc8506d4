"""A collector of OpenTelemetry spans: takes OTLP/HTTP in protobuf, and may hang, refuse, or come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WAIT_S = 60.0


@dataclass(frozen=True)
class Span:
    """One that came. Ids in hex; ``parent`` is "" for a root; *links*: (trace id, span id)."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    began: int
    ended: int
    is_error: bool
    problem: str
    attributes: dict[str, Any]
    resource: dict[str, Any] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()

    @property
    def operation(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def outcome(self) -> str:
        return self.attributes.get("tidegate.outcome", "")


class Collector:
    """Listens on a free loopback port while the context is open.

    Attributes: spans: all that came; requests: the headers of each, their names in lower case; status: what it answers; proceed: cleared,
        it takes requests and does not answer them.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.requests: list[dict[str, str]] = []
        self.status = 200
        self.proceed = threading.Event()
        self.proceed.set()
        self.hanging = threading.Event()
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not collector.proceed.is_set():
                    collector.hanging.set()
                    collector.proceed.wait()
                if collector.status == 200:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    collector._take(self.path, headers, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """Who has hung up is not answered."""

        self._server = Server(("127.0.0.1", 0), Handler)
        serve = partial(self._server.serve_forever, poll_interval=0.02)  # what its end waits for
        self._thread = threading.Thread(target=serve, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proceed.set()
        self._server.shutdown()
        self._server.server_close()

    def wait(self, done: Callable[[Sequence[Span]], Any]) -> Any:
        """Wait until *done* of all spans is true, and return what it is."""
        with self._changed:
            if not self._changed.wait_for(lambda: done(self.spans), WAIT_S):
                raise AssertionError(f"these came: {[span.name for span in self.spans]}")
            return done(self.spans)

    def named(self, *names: str) -> list[Span]:
        """Wait for a span of each of these names, and return the first of each."""

        def found(spans: Sequence[Span]) -> list[Span]:
            first = {span.name: span for span in reversed(spans)}
            return [first[name] for name in names] if first.keys() >= set(names) else []

        return self.wait(found)

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        request = ExportTraceServiceRequest.FromString(body)
        spans = [
            _span(span, _attributes(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self.requests.append(headers)
            self.spans += spans
            self._changed.notify_all()


def _attributes(found: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in found}


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        kind=span.kind,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        problem=span.status.message,
        attributes=_attributes(span.attributes),
        resource=resource,
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )
