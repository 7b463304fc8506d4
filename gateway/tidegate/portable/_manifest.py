"""``manifest.json``: says what an export holds; written last, so its absence means unfinished."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from tidegate.spi import ConfigError, StoreIOError
from tidegate.spi.private_files import private_opener

MANIFEST_NAME: Final = "manifest.json"
FORMAT_NAME: Final = "tidegate-portable"
#: Increased when existing data changes its meaning; not for a new column or table.
FORMAT_VERSION: Final = 1


class TableFacts(msgspec.Struct, frozen=True):
    """One file of an export, ``TABLE.parquet``.

    Attributes:
        rows, bytes: how many.
        sha256: of the file, in hexadecimal digits; "" when its writer did not say.
    """

    rows: int
    bytes: int = 0
    sha256: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What an export holds.

    Attributes:
        format, version: FORMAT_NAME and the version of the format.
        gateway_version: of the program that wrote it.
        created_at: microseconds since the epoch, UTC.
        store_id: identity of the exported contents; an import makes a new one.
        last_sequence, last_pending_list: highest ever used there.
        tables: its tables, by name.
    """

    format: str
    version: int
    gateway_version: str
    created_at: int
    store_id: str
    last_sequence: int
    last_pending_list: int
    tables: dict[str, TableFacts]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write it, durably. Raises: OSError."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    with open(directory / MANIFEST_NAME, "wb", opener=private_opener) as file:
        file.write(text + b"\n")
        file.flush()
        os.fsync(file.fileno())


def table_facts(path: Path, rows: int) -> TableFacts:
    """The manifest's entry for a file just written; makes the file durable.

    Raises: OSError.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return TableFacts(rows, file.tell(), digest)


def check_table(path: Path, facts: TableFacts) -> None:
    """Raises: StoreIOError for a file that differs from what the manifest says."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest() if facts.sha256 else ""
    except OSError as error:
        raise StoreIOError(f"{path}: {error.strerror or error}") from error
    if digest != facts.sha256:
        raise StoreIOError(
            f"{path}: the export is damaged: its SHA-256 does not match "
            f"{MANIFEST_NAME}; copy it again, or export again"
        )


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the export in *directory*.

    Raises: ConfigError when there is none, or this program cannot read it.
    """
    path = directory / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not directory.exists():
            raise ConfigError(f"there is no directory {directory}") from None
        raise ConfigError(
            f"{directory} is not a finished export: {MANIFEST_NAME} is missing; export again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not the manifest of an export: {error}") from error
    if manifest.format != FORMAT_NAME:
        raise ConfigError(f"{path} has the format {manifest.format!r}, not {FORMAT_NAME!r}")
    if not 1 <= manifest.version <= FORMAT_VERSION:
        raise ConfigError(
            f"{path} has version {manifest.version} of the format, and this program "
            f"reads only up to {FORMAT_VERSION}: import it with the tidegate that wrote "
            f"it ({manifest.gateway_version}) or a newer one"
        )
    return manifest
