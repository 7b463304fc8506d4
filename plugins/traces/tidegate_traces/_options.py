"""The options of the extension, and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tidegate.spi import ConfigError, Kind, option

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*?)[ \t]*")


@dataclass(frozen=True, slots=True)
class TracesOptions:
    """The extension's own keys of its ``[[extensions]]`` table."""

    endpoint: str = option(
        "",
        help="Where spans are sent: the whole URL of a collector's OTLP/HTTP endpoint for traces, with its "
        "path. Left out: what `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT` says, "
        "or `http://localhost:4318/v1/traces`.",
    )
    headers: tuple[str, ...] = option(
        (),
        help='Headers of these requests, each `"Name: value"`. Left out, with `secret_headers`: what '
        "`OTEL_EXPORTER_OTLP_HEADERS` says.",
    )
    secret_headers: tuple[str, ...] = option(
        (), help="The same for keys and tokens: `tidegate check-config` does not show them."
    )
    certificate: Path | None = option(
        None,
        help="Certificates (PEM) of the authorities that may have signed the collector's. Left out: "
        "what `OTEL_EXPORTER_OTLP_CERTIFICATE` names, or those of the system.",
    )
    compression: str = option(
        "",
        choices=("", "none", "gzip", "deflate"),
        help="How requests are compressed. Left out: what `OTEL_EXPORTER_OTLP_COMPRESSION` says, or "
        "not at all.",
    )
    timeout: float = option(
        10.0,
        kind=Kind.DURATION,
        minimum=0.1,
        maximum=300,
        help="Time for one request, its retries included; after that its spans are lost. "
        "Guards against a collector that does not answer.",
    )
    service_name: str = option(
        "",
        help="`service.name` of the spans, and the name by which the gateway recognizes its "
        "own contexts: gateways that send to each other need different ones. Left out: what "
        "`OTEL_SERVICE_NAME` says, or `tidegate`.",
    )
    sample_ratio: float = option(
        0.01,
        minimum=0,
        maximum=1,
        help="Share of the messages without a `traceparent` that are traced; 0: none. A "
        "message with a `traceparent` is traced if that says so.",
    )
    rate_max: int = option(
        100,
        minimum=1,
        maximum=1_000_000,
        help="Messages a second whose trace begins or is continued when they are published, "
        "and as many deliveries. Guards against producers that want each message traced.",
        act="the others pass untraced, with the context they came with",
        metric="traces.capped",
    )
    open_max: int = option(
        10_000,
        minimum=100,
        maximum=1_000_000,
        help="Traced messages remembered while they wait, and deliveries remembered until "
        "they are acknowledged: some 2 KB each.",
        act="the oldest are forgotten; of a delivery a span without an outcome is left",
        metric="traces.forgotten",
    )
    rows_max: int = option(
        10_000,
        minimum=100,
        maximum=1_000_000,
        help="Traced messages remembered from their acknowledgement until the sinks have "
        "committed their rows: some 1 KB each.",
        act="the oldest are forgotten, and have no span `commit`",
        metric="traces.rows_forgotten",
    )
    queue_max: int = option(
        4096,
        minimum=1,
        maximum=1_000_000,
        help="Spans that wait to be sent. Guards against a collector that is slower than the gateway.",
        act="a span is dropped",
        metric="traces.dropped",
    )
    batch_max: int = option(
        128,
        minimum=1,
        maximum=10_000,
        help="Spans in one request. They are encoded in one go, beside the event loop, "
        "which waits for the interpreter meanwhile. Larger batches cost less and disturb "
        "more.",
    )
    batch_interval: float = option(
        1.0,
        kind=Kind.DURATION,
        minimum=0.01,
        maximum=60,
        help="How long a span waits for others at most before it is sent.",
    )
    stop_timeout: float = option(
        3.0,
        kind=Kind.DURATION,
        minimum=0,
        maximum=60,
        help="How long a stopping gateway waits until all spans are sent; the rest are lost.",
    )

    def __post_init__(self) -> None:
        if self.endpoint:
            check_endpoint(self.endpoint)
        for key, lines in (("headers", self.headers), ("secret_headers", self.secret_headers)):
            for number, line in enumerate(lines):
                if not _HEADER.fullmatch(line):
                    raise ConfigError(
                        f'number {number + 1} is no header; write it as "Name: value"', key=key
                    )
        if self.certificate is not None and not self.certificate.is_file():
            raise ConfigError(f"{self.certificate} is no file; name one in PEM", key="certificate")
        if self.batch_max > self.queue_max:
            raise ConfigError(
                f"{self.batch_max} is more than queue_max, {self.queue_max}: so many never wait",
                key="batch_max",
            )

    @property
    def sent_headers(self) -> dict[str, str]:
        """All headers, by name."""
        found = (_HEADER.fullmatch(line) for line in (*self.headers, *self.secret_headers))
        return {match[1]: match[2] for match in found if match is not None}


def check_endpoint(endpoint: str) -> None:
    """Raises: ConfigError unless it is the URL of an OTLP/HTTP endpoint."""
    try:
        parts = urlsplit(endpoint)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_fine = False
        parts = urlsplit("")
    if not is_fine:
        raise ConfigError(
            f"{endpoint!r} is no http or https URL; write one such as "
            '"http://localhost:4318/v1/traces"',
            key="endpoint",
        )
    if parts.path in ("", "/"):
        raise ConfigError(
            f"{endpoint!r} has no path: a collector would answer 404; most take traces at "
            f'"{parts.scheme}://{parts.netloc}/v1/traces"',
            key="endpoint",
        )
