"""Options of ``format("tidegate")``. Spark's options are strings with case-insensitive names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class Options:
    """The options of a query; docs/flight.md describes them too.

    Attributes:
        uri: of the gateway's Flight server: ``grpc://host:port``, or ``grpc+tls://host:port``.
        user, password: ``password_file`` names a file, on the driver and on each worker, whose
            first line is the password; that keeps it out of query plans.
        ca_file: PEM file with the CAs for the server's certificate; "": those of the system.
        reader: of a stream: its named reader. Of a batch: begin after what that has committed.
        start, to: (``from``, ``to``) of a batch: ack sequences, inclusive; since, until: times, ISO 8601
            with a zone.
        max_rows_per_batch: of a stream; 0: no limit. rows_per_partition: per task.
        fail_on_data_loss: rows missing from the log are an error; False: they are left out.
        timeout: seconds for which an unreachable gateway is retried.
    """

    uri: str
    user: str = ""
    password: str = ""
    password_file: str = ""
    ca_file: str = ""
    reader: str = ""
    start: str = ""
    to: str = ""
    since: str = ""
    until: str = ""
    max_rows_per_batch: int = 0
    rows_per_partition: int = 100_000
    fail_on_data_loss: bool = True
    timeout: float = 60.0

    def __repr__(self) -> str:  # the password must never reach a log
        return f"Options({self.uri!r}, user={self.user!r}, reader={self.reader!r})"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """Parse Spark's options. Raises: ValueError naming the option."""
        names = {field.name.replace("start", "from"): field for field in fields(cls)}
        values: dict[str, object] = {}
        for key, text in given.items():
            field = names.get(key.lower())
            if field is None:
                known = ", ".join(sorted(names))
                raise ValueError(f"tidegate: no option {key!r}; there are: {known}")
            values[field.name] = _value(key, text, field.type)
        if not values.get("uri"):
            raise ValueError("tidegate: the option 'uri' is required, e.g. grpc://127.0.0.1:8815")
        options = cls(**values)  # type: ignore[arg-type]  # as read just before
        if options.password and options.password_file:
            raise ValueError("tidegate: name 'password' or 'password_file', not both")
        if options.max_rows_per_batch < 0 or options.rows_per_partition < 1 or options.timeout < 0:
            raise ValueError(
                "tidegate: rows_per_partition is 1 or more, max_rows_per_batch and timeout are not negative"
            )
        return options

    def secret(self) -> str:
        """The password. Raises: ValueError."""
        if not self.password_file:
            return self.password
        try:
            return Path(self.password_file).read_text().partition("\n")[0].rstrip("\r")
        except OSError as error:
            raise ValueError(f"tidegate: password_file cannot be read: {error}") from None


def _value(key: str, text: str, kind: object) -> object:
    """Raises: ValueError."""
    try:
        if kind == "bool":
            return _FLAGS[text.lower()]
        return int(text) if kind == "int" else float(text) if kind == "float" else text
    except (KeyError, ValueError):
        raise ValueError(f"tidegate: {key} = {text!r} is no {kind}") from None
