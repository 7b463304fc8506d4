"""``manifest.json``: says what an export holds; written last, so its absence means unfinished."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tidegate.spi import ConfigError

MANIFEST_NAME: Final = "manifest.json"
FORMAT_NAME: Final = "tidegate-portable"
#: Raised when what is there changes its meaning; a further column or table does not raise it.
FORMAT_VERSION: Final = 1


class Manifest(msgspec.Struct, frozen=True):
    """What an export holds.

    Attributes:
        format, version: FORMAT_NAME and the version of the format.
        gateway_version: of the program that wrote it.
        created_at: microseconds since the epoch, UTC.
        store_id: identity of the contents that were exported; an import makes another one.
        last_sequence, last_pending_list: highest ever used there.
        rows: by table, how many rows its file has; each table is in ``TABLE.parquet``.
    """

    format: str
    version: int
    gateway_version: str
    created_at: int
    store_id: str
    last_sequence: int
    last_pending_list: int
    rows: dict[str, int]


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write it. Raises: OSError."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (directory / MANIFEST_NAME).write_bytes(text + b"\n")


def read_manifest(directory: Path) -> Manifest:
    """The manifest of the export in *directory*.

    Raises: ConfigError when there is none, or one that this program cannot read.
    """
    path = directory / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not directory.exists():
            raise ConfigError(f"there is no directory {directory}") from None
        raise ConfigError(
            f"{directory} is no finished export: it has no {MANIFEST_NAME}; export again"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a manifest of an export: {error}") from error
    if manifest.format != FORMAT_NAME:
        raise ConfigError(f"{path} is of the format {manifest.format!r}, not {FORMAT_NAME!r}")
    if not 1 <= manifest.version <= FORMAT_VERSION:
        raise ConfigError(
            f"{path} has version {manifest.version} of the format; this program reads up to "
            f"{FORMAT_VERSION}: import it with the tidegate that wrote it "
            f"({manifest.gateway_version}) or a newer one"
        )
    return manifest
